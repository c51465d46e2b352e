"""The TCP ports on which the parts of one job listen."""

import hashlib

PORTS = 16
"""How many ports, from the first that the secret gives, are tried."""


def choose_rendezvous_port(secret: str, run_id: str) -> int:
    """Return where the launchers of one step meet: the first of PORTS, below the ephemeral
    range."""
    digest = hashlib.sha256(f"hpctl elastic port {secret} {run_id}".encode()).digest()
    return 15000 + int.from_bytes(digest[:4], "big") % 15000
