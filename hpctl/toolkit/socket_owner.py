"""Whose process is at the other end of a TCP connection within this host.

A port below 65536 is free to every user of a node, so that an answer on it proves nothing of who
gives it. The kernel knows: `/proc/net/tcp` lists each socket with the uid of the process that made
it or, at the end that accepted, that accepted it.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

_TABLES = "tcp", "tcp6"
_LOCAL, _REMOTE, _UID = 1, 2, 7
"""Columns of a line (proc_pid_net(5))."""


def find_local_peer_uid(connection: socket.socket) -> int | None:
    """Return the uid at the other end, None where that is not on this host.

    It is 0 until a process has accepted the connection: ask after the first answer. Raises OSError.
    """
    own, other = (
        _format_proc_net_address(connection.getsockname()),
        _format_proc_net_address(connection.getpeername()),
    )
    for fields in _read_proc_net_tcp_rows():
        if (
            _strip_mapped_ipv4_prefix(fields[_LOCAL]) == other
            and _strip_mapped_ipv4_prefix(fields[_REMOTE]) == own
        ):
            return int(fields[_UID])
    return None


def _read_proc_net_tcp_rows() -> Iterator[list[str]]:
    for table in _TABLES:
        path = Path("/proc/net") / table
        if not path.exists():  # a kernel without IPv6
            continue
        with path.open() as lines:
            next(lines, None)
            for line in lines:
                yield line.split()


def _format_proc_net_address(address: tuple[str, int]) -> str:
    """Return an address as the kernel writes it: each four bytes as a number of this machine."""
    packed = ipaddress.ip_address(address[0].partition("%")[0]).packed
    words = [packed[at : at + 4] for at in range(0, len(packed), 4)]
    text = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return _strip_mapped_ipv4_prefix(f"{text}:{address[1]:04X}")


_MAPPED = "".join(
    f"{int.from_bytes(word, sys.byteorder):08X}" for word in (b"\0" * 4, b"\0" * 4, b"\0\0\xff\xff")
)


def _strip_mapped_ipv4_prefix(text: str) -> str:
    """Return an IPv4 address that a socket of IPv6 has as IPv4's own sockets have it."""
    return text.removeprefix(_MAPPED)
