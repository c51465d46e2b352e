"""What strangers on a node can do to the connections between the helpers of a job."""

import errno
import os
import socket
import ssl
import threading
import time
from contextlib import ExitStack, closing, suppress

import pytest
from msgspec.structs import replace

from hpctl.checkpoints.fast import peer as peers
from hpctl.checkpoints.fast.peer import (
    FileAnswerBody,
    NoHelperListeningError,
    PeerConnection,
    PeerError,
    PeerServer,
)
from hpctl.checkpoints.fast.spec import FastCheckpointSaveSpec
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions
from hpctl.wire.admission import (
    UNPROVEN,
    UNPROVEN_BY_ADDRESS,
    HandshakeLimiter,
    create_signed_peer_name,
)
from hpctl.wire.job_channel import PIECE, JobChannel

SECRETS = b"another user's weights"


def spec_of(place, *addresses):
    """A job on one host for each address."""
    hosts = tuple(f"n{number}" for number in range(len(addresses)))
    secret = os.urandom(32).hex()
    return FastCheckpointSaveSpec(
        "1", secret, FastCheckpointSaveOptions(str(place / "n0")), str(place), hosts, addresses
    )


class Relay:
    """A stranger in a helper's place: it relays to the real one, and changes what it likes."""

    def __init__(self, listener, target, change=lambda content: content):
        self._listener, self._target, self._change = listener, target, change
        self.seen = bytearray()
        listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._relay, args=(here,), daemon=True).start()

    def _relay(self, here):
        with here, socket.create_connection(self._target) as there:
            back = threading.Thread(target=self._copy, args=(there, here), daemon=True)
            back.start()
            self._copy(here, there)
            back.join()

    def _copy(self, source, sink):
        with suppress(OSError):
            while content := source.recv(1 << 16):
                self.seen += content
                sink.sendall(self._change(content))
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def bind(address, port):
    """A socket of a stranger."""
    made = socket.socket()
    made.bind((address, port))
    return made


@pytest.fixture
def relayed(tmp_path):
    """The spec of a job whose helper listens on the second port, and a relay on the first."""
    spec = spec_of(tmp_path, "127.0.9.81")
    ports = peers.list_helper_ports(spec)
    listener = bind("127.0.9.81", next(ports))
    said = []

    def answer(request):
        said.append(request["do"])
        return FileAnswerBody(SECRETS * 100_000) if request["do"] == "get" else {"yes": 1}

    with closing(PeerServer(spec, "n0", answer)), closing(listener):
        yield spec, listener, ("127.0.9.81", next(ports)), said


def test_a_relay_reads_nothing(relayed):
    spec, listener, helper, _ = relayed
    relay = Relay(listener, helper)
    content = bytearray()
    with closing(PeerConnection(spec, "n0")) as peer:
        peer.receive_file(content.extend, lambda _: None, "get")
    assert content == SECRETS * 100_000
    assert relay.seen
    for word in (SECRETS, b'"do": "get"', spec.secret.encode()):
        assert word not in relay.seen


def test_a_relay_changes_nothing(relayed):
    spec, listener, helper, _ = relayed

    def flip(content):
        return bytes([*content[:-1], content[-1] ^ 1]) if len(content) > 4096 else content

    Relay(listener, helper, flip)
    with (
        closing(PeerConnection(spec, "n0")) as peer,
        pytest.raises(PeerError, match="changed on its way"),
    ):
        peer.receive_file(lambda _: None, lambda _: None, "get")


def test_a_relay_adds_nothing(relayed):
    spec, listener, helper, said = relayed
    relay = Relay(listener, helper, lambda content: content + b'{"do": "bye", "over": true}\n')
    with suppress(OSError), closing(PeerConnection(spec, "n0")) as peer:
        peer.ask("ping")
    assert relay.seen
    assert "bye" not in said


def test_another_hosts_helper_is_not_taken_for_the_one_asked(tmp_path):
    spec = spec_of(tmp_path, "127.0.9.82", "127.0.9.82")
    with closing(PeerServer(spec, "n1", lambda _: {"host": "n1"})):
        with closing(PeerConnection(spec, "n1")) as peer:
            assert peer.ask("ping") == {"host": "n1"}
        with pytest.raises(PeerError, match="does not know the secret"):
            PeerConnection(spec, "n0")


@pytest.mark.parametrize("other", [{"secret": "0" * 64}, {"job": "2"}])
def test_another_job_is_refused(tmp_path, monkeypatch, other):
    spec = spec_of(tmp_path, "127.0.9.83")
    ports = list(peers.list_helper_ports(spec))
    monkeypatch.setattr(peers, "list_helper_ports", lambda _: iter(ports))
    with (
        closing(PeerServer(spec, "n0", lambda _: {"yes": 1})),
        pytest.raises(PeerError, match="does not know the secret"),
    ):
        PeerConnection(replace(spec, **other), "n0")


def test_where_every_port_is_closed_no_helper_runs(tmp_path):
    with pytest.raises(NoHelperListeningError):
        PeerConnection(spec_of(tmp_path, "127.0.9.84"), "n0")


def test_ports_on_which_strangers_say_nothing_cost_little_time(tmp_path):
    spec, address = spec_of(tmp_path, "127.0.9.85"), "127.0.9.85"
    with ExitStack() as silent:
        for port in list(peers.list_helper_ports(spec))[:-1]:
            silent.enter_context(closing(bind(address, port))).listen()
        with closing(PeerServer(spec, "n0", lambda _: {"yes": 1})):
            begun = time.monotonic()
            with closing(PeerConnection(spec, "n0", 60.0)) as peer:
                assert peer.ask("ping") == {"yes": 1}
            # One after the other they would take a minute each.
            assert time.monotonic() - begun < 50


def test_dripping_strangers_keep_no_peer_out(tmp_path):
    spec, address = spec_of(tmp_path, "127.0.9.86"), "127.0.9.86"
    port = next(peers.list_helper_ports(spec))
    over = threading.Event()
    with closing(PeerServer(spec, "n0", lambda _: {"yes": 1})), ExitStack() as strangers:
        strangers.callback(over.set)
        held = []
        for _ in range(256):
            made = strangers.enter_context(closing(socket.create_connection((address, port))))
            held.append(made)

        def drip():
            while not over.wait(0.05):
                for each in held:
                    with suppress(OSError):
                        each.send(b"\x16")

        threading.Thread(target=drip, daemon=True).start()
        for _ in range(UNPROVEN_BY_ADDRESS):
            with closing(PeerConnection(spec, "n0")) as peer:
                assert peer.ask("ping") == {"yes": 1}


def read_address(connection: socket.socket) -> str:
    """Return the address of this end; empty of a connection that is closed."""
    try:
        return connection.getsockname()[0]
    except OSError:
        return ""


def test_a_peer_is_out_of_the_strangers_room_before_it_learns_that_it_is_proven(
    tmp_path, monkeypatch
):
    """A stranger that comes in between would else have a proven connection shut down."""
    release, send, order = HandshakeLimiter.release, JobChannel.send, []

    def note_release(pool, connection):
        # Threads of servers that earlier tests closed release theirs meanwhile.
        if read_address(connection) == "127.0.9.95":
            order.append("released")
        release(pool, connection)

    def note_send(channel, message):
        order.append(message)
        send(channel, message)

    monkeypatch.setattr(HandshakeLimiter, "release", note_release)
    monkeypatch.setattr(JobChannel, "send", note_send)
    spec = spec_of(tmp_path, "127.0.9.95")
    with closing(PeerServer(spec, "n0", lambda _: {"yes": 1})), closing(PeerConnection(spec, "n0")):
        assert order == ["released", {"welcome": 1}]


def test_a_peer_that_has_named_itself_stays_among_strangers(tmp_path, monkeypatch):
    """It takes its time in the handshake, and strangers come."""
    monkeypatch.setattr(peers, "HANDSHAKE_S", 60.0)
    spec = spec_of(tmp_path, "127.0.9.96")
    at = "127.0.9.96", next(peers.list_helper_ports(spec))
    context = peers.create_peer_tls_context(spec, "n0")
    outgoing = ssl.MemoryBIO()
    name = create_signed_peer_name(spec.secret)
    client = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with closing(PeerServer(spec, "n0", lambda _: {"yes": 1})), ExitStack() as held:
        peer = held.enter_context(socket.create_connection(at, 30))
        peer.sendall(outgoing.read())
        assert peer.recv(1 << 16)[:1] == b"\x16"  # the helper's part of the handshake
        strangers = [
            held.enter_context(socket.create_connection(at, 30)) for _ in range(3 * UNPROVEN)
        ]
        assert strangers[0].recv(1) == b""
        peer.setblocking(False)
        with suppress(BlockingIOError):
            while content := peer.recv(1 << 16):
                assert content
            pytest.fail("the peer was shut down")


def test_a_handshake_has_one_limit_however_slowly_its_bytes_come(tmp_path, monkeypatch):
    monkeypatch.setattr(peers, "HANDSHAKE_S", 0.5)
    spec, address = spec_of(tmp_path, "127.0.9.87"), "127.0.9.87"
    with (
        closing(PeerServer(spec, "n0", lambda _: {})),
        closing(
            socket.create_connection((address, next(peers.list_helper_ports(spec))))
        ) as stranger,
    ):
        stranger.settimeout(0.1)
        deadline = time.monotonic() + 60
        closed = False
        while not closed:
            assert time.monotonic() < deadline
            with suppress(TimeoutError):
                try:
                    stranger.sendall(b"\x16")
                    closed = stranger.recv(1) == b""
                except ConnectionError:
                    closed = True


class FailingListener:
    """A listener of which the first calls of accept fail, as they do without descriptors."""

    def __init__(self, listener, errors):
        self._listener, self.errors = listener, list(errors)

    def accept(self):
        if self.errors:
            raise OSError(self.errors.pop(), "accept fails")
        return self._listener.accept()

    def __getattr__(self, name):
        return getattr(self._listener, name)


def test_a_listener_outlives_errors_of_accept(tmp_path, monkeypatch):
    listen = peers.open_helper_listener
    errors = errno.EMFILE, errno.ENFILE, errno.ECONNABORTED, errno.ENOMEM
    monkeypatch.setattr(
        peers, "open_helper_listener", lambda *at: FailingListener(listen(*at), errors)
    )
    spec = spec_of(tmp_path, "127.0.9.88")
    with (
        closing(PeerServer(spec, "n0", lambda _: {"yes": 1})),
        closing(PeerConnection(spec, "n0", 60.0)) as peer,
    ):
        assert peer.ask("ping") == {"yes": 1}


def test_a_listener_outlives_a_thread_that_cannot_start(tmp_path, monkeypatch):
    spec, address = spec_of(tmp_path, "127.0.9.89"), "127.0.9.89"
    with closing(PeerServer(spec, "n0", lambda _: {"yes": 1})):
        refused = threading.Event()

        def refuse(_):
            refused.set()
            raise RuntimeError("can't start new thread")

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with closing(
                socket.create_connection((address, next(peers.list_helper_ports(spec))))
            ) as first:
                first.settimeout(60)
                assert first.recv(1) == b""
        assert refused.is_set()
        with closing(PeerConnection(spec, "n0")) as peer:
            assert peer.ask("ping") == {"yes": 1}


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
def test_a_body_arrives_as_it_is(tmp_path, size):
    spec, content = spec_of(tmp_path, "127.0.9.90"), os.urandom(size)
    (tmp_path / "file").write_bytes(content)

    def answer(request):
        if request["do"] == "memory":
            return FileAnswerBody(content)
        return FileAnswerBody((tmp_path / "file").open("rb"), size)

    with closing(PeerServer(spec, "n0", answer)), closing(PeerConnection(spec, "n0")) as peer:
        assert peer.read("memory") == content
        assert peer.read("file") == content
        assert peer.read("memory") == content


def test_a_file_that_becomes_shorter_is_an_error(tmp_path):
    spec = spec_of(tmp_path, "127.0.9.91")
    (tmp_path / "file").write_bytes(b"x" * 10)
    with (
        closing(
            PeerServer(
                spec, "n0", lambda _: FileAnswerBody((tmp_path / "file").open("rb"), 4 * PIECE)
            )
        ),
        closing(PeerConnection(spec, "n0")) as peer,
        pytest.raises(PeerError, match="lost within a file"),
    ):
        peer.read("get")


@pytest.mark.parametrize("error", [UnicodeError("label too long"), MemoryError()])
def test_whatever_ends_an_attempt_ends_the_wait_for_it(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(socket, "create_connection", fail)
    spec, came = spec_of(tmp_path, "127.0.9.92"), []

    def connect():
        try:
            PeerConnection(spec, "n0")
        except OSError as raised:
            came.append(raised)

    waiting = threading.Thread(target=connect, daemon=True)
    waiting.start()
    waiting.join(60)
    assert [type(each) for each in came] == [PeerError]
    assert type(error).__name__ in str(came[0])


def test_a_peer_without_a_thread_is_an_error_of_the_peer(tmp_path, monkeypatch):
    def refuse(_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(PeerError, match="can't start new thread"):
        PeerConnection(spec_of(tmp_path, "127.0.9.93"), "n0")


def test_a_listener_without_descriptors_closes_a_stranger(tmp_path, monkeypatch):
    listen, failing = peers.open_helper_listener, []

    def listen_once(*at):
        failing.append(FailingListener(listen(*at), ()))
        return failing[0]

    monkeypatch.setattr(peers, "open_helper_listener", listen_once)
    monkeypatch.setattr(peers, "HANDSHAKE_S", 600.0)
    spec, address = spec_of(tmp_path, "127.0.9.94"), "127.0.9.94"
    with closing(PeerServer(spec, "n0", lambda _: {"yes": 1})):
        at = address, next(peers.list_helper_ports(spec))
        with closing(socket.create_connection(at)) as first:
            # The next accept has begun, or fails: in both cases one fails while this one waits.
            failing[0].errors.extend([errno.EMFILE] * 2)
            with closing(socket.create_connection(at)):
                first.settimeout(60)
                assert first.recv(1) == b""
