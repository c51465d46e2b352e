"""The TLS identities of the parts of one job: each proves by its own that it is of the job.

A job's parts share a secret that only files and processes of the job's owner hold. The private key
and the certificate of a part follow from that secret and the part's name, so that each side can
compute the other's certificate and trusts that one only. A peer that completes a TLS handshake has
the secret; a stranger that relays a connection sees ciphertext, and one that answers in another
part's place has the certificate of another name. The certificates have no lifetime, because a
node's clock may be wrong. Why: ADR 0105.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from datetime import datetime
from functools import lru_cache

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

_FIRST = datetime(1970, 1, 1)  # noqa: DTZ001 -- x509 takes UTC without a zone
_LAST = datetime(9999, 12, 31)  # noqa: DTZ001


def create_server_tls_context(secret: str, name: str, client: str) -> ssl.SSLContext:
    """Return the context of the part `name`, which answers the parts that call themselves `client`.

    No session tickets are sent: after the handshake the server speaks only when it answers.
    """
    context = _create_mutual_tls_context(ssl.PROTOCOL_TLS_SERVER, secret, name, client)
    context.num_tickets = 0
    return context


def create_client_tls_context(secret: str, name: str, server: str) -> ssl.SSLContext:
    """Return the context of the part `name`, which trusts the part `server` and no other."""
    return _create_mutual_tls_context(ssl.PROTOCOL_TLS_CLIENT, secret, name, server)


def _create_mutual_tls_context(side: int, secret: str, own: str, other: str) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The whole certificate is compared, so that the name in it proves nothing more.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    certificate, key = _derive_certificate_from_secret(secret, own)
    _load_certificate_chain(context, key + certificate)
    trusted, _ = _derive_certificate_from_secret(secret, other)
    context.load_verify_locations(cadata=trusted.decode())
    return context


def _load_certificate_chain(context: ssl.SSLContext, pem: bytes) -> None:
    """Load a key and its certificate. `ssl` reads files alone; this one is in memory."""
    descriptor = os.memfd_create("hpctl-identity", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


@lru_cache(maxsize=64)
def _derive_certificate_from_secret(secret: str, name: str) -> tuple[bytes, bytes]:
    """Return a certificate and its key, as PEM. The same arguments give the same bytes."""
    seed = hashlib.sha256(f"hpctl identity\0{secret}\0{name}".encode()).digest()
    key = Ed25519PrivateKey.from_private_bytes(seed)
    # A common name has 64 characters at most, and a host's name may have more.
    short = hashlib.sha256(name.encode()).hexdigest()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, short)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_FIRST)
        .not_valid_after(_LAST)
        .sign(key, None)
    )
    return (
        certificate.public_bytes(Encoding.PEM),
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
    )
