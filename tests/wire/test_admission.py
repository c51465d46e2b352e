"""Which of the connections that have not proved themselves go where there is no room."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from hpctl.wire.admission import (
    UNPROVEN,
    UNPROVEN_BY_ADDRESS,
    UNPROVEN_BY_HOST,
    HandshakeLimiter,
    create_signed_peer_name,
)

SECRET = "0123456789abcdef"
IN_ALL = UNPROVEN + UNPROVEN_BY_HOST


class Crowd:
    """A pool of a job of one host, and who has connected."""

    def __init__(self, held: ExitStack) -> None:
        self.pool, self._held = HandshakeLimiter(SECRET, 1), held

    def connect(self, says: bytes = b"", address: str = "10.0.0.1") -> socket.socket:
        """Return the client's end of a new connection that has said something."""
        server, client = socket.socketpair()
        self._held.enter_context(server)
        self._held.enter_context(client)
        client.setblocking(False)
        client.sendall(says)
        self.pool.admit(server, address)
        return client


def is_shut(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    with ExitStack() as held:
        yield Crowd(held)


def test_the_oldest_of_an_address_goes_where_it_has_too_many(crowd: Crowd) -> None:
    clients = [crowd.connect(b"\x16") for _ in range(UNPROVEN_BY_ADDRESS + 3)]
    assert [is_shut(client) for client in clients[:4]] == [True, True, True, False]


def test_the_oldest_of_the_largest_crowd_goes_where_there_are_too_many(crowd: Crowd) -> None:
    few = crowd.connect(address="10.0.0.2")
    many = [crowd.connect(address=f"10.0.1.{n % 2}") for n in range(IN_ALL)]
    assert is_shut(many[0])
    assert not is_shut(few)


def test_a_peer_that_has_named_itself_stays(crowd: Crowd) -> None:
    peer = crowd.connect(b"\x16 a hello to " + create_signed_peer_name(SECRET).encode())
    strangers = [crowd.connect() for _ in range(3 * IN_ALL)]
    assert is_shut(strangers[0])
    assert not is_shut(peer)


@pytest.mark.parametrize("secret", ["another job's secret", ""])
def test_a_name_of_another_secret_is_no_peer_s(crowd: Crowd, secret: str) -> None:
    stranger = crowd.connect(create_signed_peer_name(secret).encode())
    for _ in range(UNPROVEN_BY_ADDRESS):
        crowd.connect()
    assert is_shut(stranger)


def test_a_name_that_a_stranger_has_seen_counts_once(crowd: Crowd) -> None:
    seen = create_signed_peer_name(SECRET).encode()
    strangers = [crowd.connect(seen) for _ in range(2 * UNPROVEN_BY_ADDRESS)]
    assert not is_shut(strangers[0])
    assert all(is_shut(client) for client in strangers[1:UNPROVEN_BY_ADDRESS])


def test_peers_in_their_handshake_are_bounded_too(crowd: Crowd) -> None:
    names = [
        create_signed_peer_name(SECRET).encode() for _ in range(2 * IN_ALL + UNPROVEN_BY_ADDRESS)
    ]
    peers = [crowd.connect(name) for name in names]
    assert is_shut(peers[0])
    assert not is_shut(peers[-1])


def test_what_is_released_is_never_shut_down() -> None:
    pool = HandshakeLimiter(SECRET, 1)
    server, client = socket.socketpair()
    with server, client, ExitStack() as held:
        pool.admit(server, "10.0.0.1")
        pool.release(server)
        crowd = Crowd(held)
        crowd.pool = pool
        for _ in range(2 * IN_ALL):
            crowd.connect()
        pool.drop_oldest_connection()
        client.setblocking(False)
        assert not is_shut(client)


def test_a_peer_s_limit_for_its_reads_holds_up_no_other(crowd: Crowd) -> None:
    """A pool that waited for a silent connection would take no other in meanwhile."""
    server, client = socket.socketpair()
    with server, client:
        crowd.pool.admit(server, "10.0.0.1")
        server.settimeout(600)
        crowd.pool.drop_oldest_connection()
        assert client.recv(1) == b""
