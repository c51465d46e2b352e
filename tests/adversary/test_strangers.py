"""Peers that have proved nothing: what they hold is bounded, in number, bytes and time."""

import contextlib
import socket
import time

import pytest

from hpctl.service.intake import server as daemon_server
from hpctl.service.intake.app import make_agent_intake_app
from hpctl.service.intake.server import (
    ConnectedPeer,
    ConnectionLimits,
    PeerConnectionTracker,
    UvicornServerThread,
)
from hpctl.wire import reports as wire
from hpctl.wire.authentication import IntakeAuthenticationSettings
from tests.intakes import Sink
from tests.waiting import until

pytestmark = [pytest.mark.integration, pytest.mark.adversary]

WITHIN_S = 30.0
"""How long a busy machine may take to hang up; a peer that is not bounded stays for good."""


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(daemon_server, "HEAD_S", 0.5)
    app = make_agent_intake_app(IntakeAuthenticationSettings(), Sink(), lambda _: None)
    bounds = ConnectionLimits(waiting=40, waiting_of_address=10)
    running = UvicornServerThread(app, "127.0.0.1", bounds=bounds)
    running.start()
    yield running
    running.stop()


def connect(server: UvicornServerThread, source: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), WITHIN_S, (source, 0))


def ended(client: socket.socket, within_s: float = WITHIN_S) -> bool:
    """Whether the server hangs up."""
    client.settimeout(within_s)
    try:
        while client.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def answers(server: UvicornServerThread, source: str = "127.0.0.1") -> bytes:
    with connect(server, source) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        return client.recv(4096)


@pytest.mark.parametrize("begun", [b"", b"GET /heal", b"\r\n", b"GET / HTTP/1.1\r\nX: y\r\n"])
def test_a_head_that_does_not_end_is_given_seconds(server, begun):
    with connect(server) as client:
        client.sendall(begun)
        before = time.monotonic()
        assert ended(client)
        assert time.monotonic() - before > 0.3


def test_dripping_buys_no_time(server):
    with connect(server) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Drip: ")
        before = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - before < WITHIN_S:
                client.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() - before < WITHIN_S


def test_a_body_for_a_path_that_takes_none_is_not_read(server):
    with connect(server) as client:
        client.sendall(b"POST /nowhere HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000000\r\n\r\n")
        assert b"404" in client.recv(4096)
        assert ended(client)


@pytest.mark.parametrize("at_once", [True, False], ids=["in-one", "in-pieces"])
def test_sixteen_kilobytes_of_head_at_most(server, at_once):
    line = b"X-Long: " + b"a" * 1000 + b"\r\n"
    with connect(server) as client, contextlib.suppress(OSError):
        head = b"GET /healthz HTTP/1.1\r\n" + 20 * line + b"\r\n"
        for piece in [head] if at_once else [head[n : n + 500] for n in range(0, len(head), 500)]:
            client.sendall(piece)
        assert b" 200 " not in client.recv(4096)
    with connect(server) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: h\r\n" + 10 * line + b"\r\n")
        assert b" 200 " in client.recv(4096)


def test_requests_are_not_piled_up(server):
    with connect(server) as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n" * 2000)
        heard = b""
        with contextlib.suppress(OSError):
            while piece := client.recv(65536):
                heard += piece
        assert heard.count(b" 200 ") <= 1


def test_a_crowd_of_one_address_and_of_many_leaves_room_for_who_says_something(server):
    crowd = [connect(server) for _ in range(30)]
    crowd += [connect(server, f"127.0.3.{n}") for n in range(1, 60)]
    until(lambda: len(server.connections) <= 40)
    assert b" 200 " in answers(server)
    assert b" 200 " in answers(server, "127.0.3.1")
    for client in crowd:
        client.close()


def test_bodies_of_strangers_are_bounded_in_all(monkeypatch):
    dropped = []
    crowd = PeerConnectionTracker(ConnectionLimits(waiting_bytes=1000), lambda: 0.0)
    peers = [ConnectedPeer(f"10.0.0.{n}", lambda n=n: dropped.append(n)) for n in range(5)]
    for peer in peers:
        crowd.made(peer)
        crowd.holds(peer, 300)
    assert dropped == [0, 1]
    crowd.whole(peers[2])
    crowd.holds(peers[4], 400)
    assert dropped == [0, 1]


def test_connections_that_say_nothing_end_no_stream():
    dropped: list[str] = []
    crowd = PeerConnectionTracker(
        ConnectionLimits(waiting=4, in_all=12, oldest_busy_goes=True), lambda: 0.0
    )
    for number in range(10):
        stream = ConnectedPeer(f"10.0.0.{number}", lambda n=number: dropped.append(f"stream {n}"))
        crowd.made(stream)
        crowd.whole(stream)
    for number in range(100):
        address = f"10.0.1.{number % 20}"
        crowd.made(ConnectedPeer(address, lambda n=number: dropped.append(f"idle {n}")))
    # Those that find room to wait take the place of a stream; all others take each other's.
    assert len([each for each in dropped if each.startswith("stream")]) <= 4
    assert len(crowd) <= 12


def test_a_node_keeps_few_connections_and_the_oldest_go_first():
    dropped = []
    crowd = PeerConnectionTracker(ConnectionLimits(kept_of_node=2), lambda: 0.0)
    for number in range(4):
        peer = ConnectedPeer("10.0.0.1", lambda n=number: dropped.append(n))
        crowd.made(peer)
        crowd.whole(peer)
        crowd.kept(peer, "n1")
    assert dropped == [0, 1]
    assert len(crowd) == 2


def test_a_large_body_is_no_head(server):
    with connect(server) as client:
        head = f"POST {wire.PATH} HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n"
        client.sendall(head.encode() + b"x" * 200_000)
        assert b"missing_credential" in client.recv(4096)
