"""MUNGE credentials through libmunge.so.2: who says a thing, from which host, on every node alike.

A credential proves the effective uid of the process that encoded it and the address of its host,
and is good once: munged rejects a second decode on the same host. Every call makes its own
context, so all functions here may be called from any thread. Calls block while munged is slow;
libmunge itself gives up after a few seconds. Numbers are those of munge.h (0.5.15).

An order to a node's agent is a credential of the daemon's in the answer to a report, whose payload
is the order itself: it proves whose it is, is used up by the one munged that decodes it, and is
good for a minute. The order names the boot of the instance that it is for.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Container
from datetime import datetime
from functools import cache
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from hpctl.faults.health import ORDER_S
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.vocabulary.evidence import EvidenceCollectionOrder
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.reset_order import GpuResetOrder

_OPT_CIPHER, _OPT_TTL, _OPT_ADDR4, _OPT_ENCODE_TIME, _OPT_SOCKET, _OPT_UID = 0, 4, 5, 6, 8, 9
_CIPHER_AES128 = 4
_E_BAD_LENGTH, _E_SOCKET, _E_TIMEOUT = 3, 6, 7
_E_BAD_CRED, _E_INVALID = 8, 14
_E_EXPIRED, _E_REWOUND, _E_REPLAYED, _E_UNAUTHORIZED = 15, 16, 17, 18


_CODES = {
    _E_BAD_LENGTH: "invalid_credential",
    **dict.fromkeys(range(_E_BAD_CRED, _E_INVALID + 1), "invalid_credential"),
    _E_EXPIRED: "expired_credential",
    _E_REWOUND: "rewound_credential",
    _E_REPLAYED: "replayed_credential",
    _E_UNAUTHORIZED: "unauthorized_credential",
}
_CLOCK_HINT = "Compare the clocks of both hosts (chronyc tracking)."
_HINTS = {
    "invalid_credential": "Check that both hosts have the same /etc/munge/munge.key.",
    "expired_credential": _CLOCK_HINT,
    "rewound_credential": _CLOCK_HINT,
}


class MungeCredentialError(HpctlError):
    """A credential that proves nothing. `code` is a stable word for counters and answers.

    invalid_credential: forged, damaged, or encoded with another cluster's key. expired_: older than
    its time to live: a slow sender, or a clock that is behind. rewound_: from the future: the
    sender's clock is ahead. replayed_: decoded on this host before. unauthorized_: encoded for
    another uid or gid than ours.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message, _HINTS.get(code, ""))
        self.code = code


class MungeUnavailable(ServiceUnavailable):
    """munged or its library cannot be asked: nothing is known about the credential."""


class Credential(Struct, frozen=True):
    """What munged vouches for. `address` is the origin host's IPv4 address as its munged says."""

    uid: int
    gid: int
    address: IPv4Address
    payload: bytes
    encode_time: datetime
    ttl: int


@cache
def _load_munge_library() -> ctypes.CDLL:
    try:
        lib = ctypes.CDLL("libmunge.so.2")
    except OSError as error:
        raise MungeUnavailable(
            f"cannot load MUNGE's library libmunge.so.2: {error}",
            "Install the library: apt-get install libmunge2",
        ) from error
    lib.munge_ctx_create.restype = ctypes.c_void_p
    lib.munge_ctx_destroy.argtypes = [ctypes.c_void_p]
    lib.munge_ctx_strerror.argtypes = [ctypes.c_void_p]
    lib.munge_strerror.restype = lib.munge_ctx_strerror.restype = ctypes.c_char_p
    return lib


def _free_c_memory(pointer: ctypes.c_void_p) -> None:
    """libc's free: what libmunge hands out is the caller's."""
    ctypes.CDLL(None).free(pointer)


class _MungeContext:
    """One munge_ctx_t, destroyed on leaving."""

    def __init__(self, socket: str | Path | None) -> None:
        self._lib = _load_munge_library()
        self.ctx = ctypes.c_void_p(self._lib.munge_ctx_create())
        if not self.ctx:
            raise MungeUnavailable(
                "cannot start MUNGE authentication: this machine is out of memory",
                "Free memory on this machine, and try again. `dmesg` lists what the kernel killed.",
            )
        self._socket = str(socket) if socket else "the default socket"
        if socket:
            self.check(self._lib.munge_ctx_set(self.ctx, _OPT_SOCKET, str(socket).encode()))

    def __enter__(self) -> _MungeContext:
        return self

    def __exit__(self, *_: object) -> None:
        self._lib.munge_ctx_destroy(self.ctx)

    def get(self, option: int, value: ctypes.c_int | ctypes.c_uint32 | ctypes.c_long) -> int:
        """Return one number that the last call left in the context."""
        self.check(self._lib.munge_ctx_get(self.ctx, option, ctypes.byref(value)))
        return int(value.value)

    def set(self, option: int, value: ctypes.c_int | ctypes.c_uint32) -> None:
        """One option of the next call."""
        self.check(self._lib.munge_ctx_set(self.ctx, option, value))

    def check(self, code: int) -> None:
        """Raise what a munge_err_t means."""
        if code == 0:
            return
        text = self._lib.munge_ctx_strerror(self.ctx) or self._lib.munge_strerror(code)
        reason = text.decode(errors="replace")
        if code in _CODES:
            raise MungeCredentialError(_CODES[code], f"MUNGE: {reason}")
        if code in (_E_SOCKET, _E_TIMEOUT):
            raise MungeUnavailable(
                f"the MUNGE daemon munged does not answer on the socket {self._socket}: {reason}",
                "Check that munged runs: systemctl status munge. hpctl's agents need MUNGE to "
                "prove who they are, also where Slurm does not use it (AuthType=auth/slurm).",
            )
        raise MungeUnavailable(
            f"the MUNGE daemon at the socket {self._socket} reports error {code}: {reason}"
        )


def encode_munge_credential(
    payload: bytes,
    socket: str | Path | None = None,
    *,
    only_uid: int | None = None,
    ttl_s: int | None = None,
) -> str:
    """Have munged make a credential over `payload`. Raises MungeUnavailable.

    With `only_uid` the payload is a secret: encrypted whatever munged's default is, and decoded
    by every munged of the cluster for processes of that effective uid alone. `ttl_s`: for how many
    seconds it is good, munged's default where that is None.
    """
    cred = ctypes.c_void_p()
    with _MungeContext(socket) as context:
        lib = _load_munge_library()
        if only_uid is not None:
            context.set(_OPT_CIPHER, ctypes.c_int(_CIPHER_AES128))
            context.set(_OPT_UID, ctypes.c_uint32(only_uid))
        if ttl_s is not None:
            context.set(_OPT_TTL, ctypes.c_int(ttl_s))
        try:
            context.check(
                lib.munge_encode(
                    ctypes.byref(cred), context.ctx, payload, ctypes.c_int(len(payload))
                )
            )
            return ctypes.string_at(cred).decode("ascii") if cred.value else ""
        finally:
            _free_c_memory(cred)


def decode_munge_credential(cred: str, socket: str | Path | None = None) -> Credential:
    """Have munged verify a credential and use it up.

    Raises MungeCredentialError where it proves nothing, MungeUnavailable where munged cannot say.
    """
    if not cred:
        raise MungeCredentialError("invalid_credential", "MUNGE: no credential")
    buffer, length = ctypes.c_void_p(), ctypes.c_int()
    uid, gid = ctypes.c_uint32(), ctypes.c_uint32()
    with _MungeContext(socket) as context:
        lib = _load_munge_library()
        refs = [ctypes.byref(out) for out in (buffer, length, uid, gid)]
        try:
            context.check(lib.munge_decode(cred.encode("ascii", "replace"), context.ctx, *refs))
            address = context.get(_OPT_ADDR4, ctypes.c_uint32())
            return Credential(
                uid=uid.value,
                gid=gid.value,
                # struct in_addr is in network order, read here as a host-order integer.
                address=IPv4Address(address.to_bytes(4, sys.byteorder)),
                payload=ctypes.string_at(buffer, length.value) if buffer.value else b"",
                encode_time=datetime.fromtimestamp(
                    context.get(_OPT_ENCODE_TIME, ctypes.c_long()), UTC
                ),
                ttl=context.get(_OPT_TTL, ctypes.c_int()),
            )
        finally:
            # Set even where a replayed or expired credential was rejected.
            _free_c_memory(buffer)


Order = GpuResetOrder | EvidenceCollectionOrder
_PREFIXES: Final[dict[type[Order], bytes]] = {
    GpuResetOrder: b"hpctl1-order:",
    EvidenceCollectionOrder: b"hpctl1-evidence:",
}


class OrderRefusedError(HpctlError):
    """An order that this agent does not carry out."""


def encode_order_credential(order: Order, socket: Path | None = None) -> str:
    """The credential of an order. Raises MungeUnavailable."""
    payload = _PREFIXES[type(order)] + msgspec.json.encode(order)
    return encode_munge_credential(payload, socket, ttl_s=int(ORDER_S))


def decode_order_credential(
    credential: str, mine: NodeGeneration, believed: Container[int], socket: Path | None = None
) -> Order:
    """The order of a credential, which is used up by that. `believed`: the uids of daemons.

    Raises OrderRefusedError, MungeCredentialError (a replay among others), MungeUnavailable.
    """
    found = decode_munge_credential(credential, socket)
    if found.uid not in believed:
        raise OrderRefusedError(
            f"the agent refuses the order to the node: it came from uid {found.uid}",
            "Only the user of hpctl's daemon may give orders to agents.",
        )
    order = _decode_order(found.payload)
    if order.generation != mine:
        raise OrderRefusedError(
            f"the agent refuses the order: it is for the machine {order.generation}, but this "
            f"machine is {mine}",
            "Nothing to do: the node has booted or was replaced since the order was given.",
        )
    if time.time() > order.until:
        raise OrderRefusedError(
            "the agent refuses the order: it has expired",
            "Compare the clocks of the head node and of this node.",
        )
    return order


def _decode_order(payload: bytes) -> Order:
    for kind, prefix in _PREFIXES.items():
        if payload.startswith(prefix):
            try:
                return msgspec.json.decode(payload[len(prefix) :], type=kind)
            except msgspec.MsgspecError as error:
                raise OrderRefusedError(
                    f"the agent does not understand the daemon's order: {error}",
                    "Install the same hpctl release on the head node and on this node.",
                ) from error
    raise OrderRefusedError(
        "the agent refuses the order: its MUNGE credential was made for another purpose"
    )
