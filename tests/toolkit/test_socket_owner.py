"""Who is at the other end of a connection within this host."""

import os
import socket
import subprocess
import sys

import pytest

from hpctl.toolkit.socket_owner import find_local_peer_uid

pytestmark = pytest.mark.integration

ACCEPT = """
import socket, sys
listener = socket.socket(fileno=0)
connection, _ = listener.accept()
connection.sendall(b"here")
connection.recv(1)
"""


@pytest.mark.parametrize(
    ("family", "bound", "reached"),
    [
        (socket.AF_INET, "127.0.0.1", "127.0.0.1"),
        (socket.AF_INET, "0.0.0.0", "127.0.0.7"),
        (socket.AF_INET6, "::1", "::1"),
        (socket.AF_INET6, "::", "127.0.0.1"),
    ],
)
@pytest.mark.parametrize("uid", [5, os.geteuid()])
def test_the_uid_is_of_the_process_that_accepted(
    family: socket.AddressFamily, bound: str, reached: str, uid: int
) -> None:
    if os.geteuid() != 0 and uid != os.geteuid():
        pytest.skip("only root can start a program as another user")
    with socket.create_server(
        (bound, 0), family=family, dualstack_ipv6=bound == "::"
    ) as listener, subprocess.Popen(
        [os.path.realpath(sys.executable), "-I", "-c", ACCEPT], stdin=listener.fileno(),
        user=uid if os.geteuid() == 0 else None, cwd="/",
    ), socket.create_connection((reached, listener.getsockname()[1]), 9) as connection:  # fmt: skip
        connection.settimeout(60)
        assert connection.recv(4) == b"here"
        assert find_local_peer_uid(connection) == uid
