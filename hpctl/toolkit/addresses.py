"""The IPv4 address of a name."""

import socket
from ipaddress import IPv4Address


def resolve_ipv4(host: str) -> frozenset[IPv4Address]:
    """Return the IPv4 addresses of a host name, or the address itself. Blocks. Raises OSError."""
    try:
        return frozenset({IPv4Address(host)})
    except ValueError:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    return frozenset(IPv4Address(entry[4][0]) for entry in found)
