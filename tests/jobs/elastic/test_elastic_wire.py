"""What launchers say to each other, and the account that they leave."""

import asyncio
import contextlib
import errno
import gc
import os
import socket
import ssl
from collections.abc import AsyncIterator
from unittest import mock

import pytest

from hpctl.jobs.elastic import controller as account
from hpctl.jobs.elastic import wire
from hpctl.jobs.elastic.controller import RankGroupController, RankGroupRecorder, RankGroupTimeouts
from hpctl.jobs.elastic.group import (
    EndRankGroupOrder,
    RankFailure,
    RankGroupResult,
    RankRestartLimits,
)
from hpctl.jobs.elastic.options import LauncherLocation
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.trouble import TroubleKind
from hpctl.wire import job_ports
from hpctl.wire.admission import UNPROVEN, HandshakeLimiter, create_signed_peer_name

SECRET = "0123456789abcdef"


RUN = f"{os.getpid()}.0"
"""Of this process alone, so that tests beside it meet on other ports."""
PORT = job_ports.choose_rendezvous_port(SECRET, RUN)


@contextlib.asynccontextmanager
async def listening(serve: wire.Serve, run_id: str = RUN) -> AsyncIterator[None]:
    """A controller's listener, of one launcher."""
    listener = wire.LauncherListener(run_id, SECRET, 1, serve)
    try:
        yield
        await asyncio.sleep(0.05)  # for the other end to see that it was left
    finally:
        listener.close()
        await asyncio.sleep(0)


async def _met() -> list[object]:
    seen: list[object] = []
    over = asyncio.Event()

    async def serve(line: wire.LauncherConnection, hello: wire.Message) -> None:
        seen.append(hello)
        try:
            while True:
                seen.append(await line.receive())
        except wire.LauncherProtocolError as error:
            seen.append(str(error))
        await line.close()
        over.set()

    async with listening(serve):
        line = await wire.connect_to_controller("127.0.0.1", RUN, SECRET, {"node": 1})
        for message in ({"beat": 1}, {"long": "x" * wire.LIMIT}, {"never": "seen"}):
            line.send(message)
        await wire.await_with_timeout(over.wait(), 60)
        await line.close()
    return seen


def test_a_line_too_long_ends_the_connection():
    seen = asyncio.run(_met())
    assert seen[:2] == [{"node": 1}, {"beat": 1}]
    assert seen[2:] == ["connection lost (LimitOverrunError)"]


class _DeadEnd(asyncio.Transport):
    """The other end of a line, of which only what is fed to the reader is heard."""

    def is_closing(self) -> bool:
        """StreamWriter asks this when it is collected, from Python 3.13 on."""
        return True


async def _suspended(jump_s: float) -> wire.Message:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    writer = asyncio.StreamWriter(_DeadEnd(), asyncio.Protocol(), reader, loop)
    clock, stopped = loop.time, [0.0]
    loop.time = lambda: clock() + stopped[0]
    heard = asyncio.create_task(wire.LauncherConnection(reader, writer).receive_with_timeout(15.0))
    await asyncio.sleep(0)
    stopped[0] = jump_s
    for _ in range(10):
        await asyncio.sleep(0.001)
    reader.feed_data(b'{"beat": 1}\n')
    return await heard


def test_a_suspended_job_is_not_silent():
    assert asyncio.run(_suspended(7200.0)) == {"beat": 1}


async def _reported_end(place: LauncherLocation) -> wire.Message:
    controller = RankGroupController(
        place, RankRestartLimits(), RankGroupTimeouts(), RankGroupRecorder(None, place.run_id), {}
    )
    await controller.listen()
    group = asyncio.create_task(controller.run())
    hello = {"node": 0, "ranks": 1, "host": "n1"}
    line = await wire.connect_to_controller("127.0.0.1", place.run_id, place.secret, hello)
    while "end" not in (message := await line.receive_with_timeout(60)):
        pass
    await line.close()
    await group
    return message


def test_failed_start_is_reported_with_its_reason(tmp_path, monkeypatch):
    def find_start(*_, **__) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(
        "hpctl.jobs.elastic.controller.find_resume_point_of_rank_generation", find_start
    )
    ran = asyncio.run(
        _reported_end(LauncherLocation(0, 1, "n1", "127.0.0.1", str(tmp_path), SECRET))
    )
    assert ran["code"] == 1
    assert "out of memory" in ran["why"]


async def _refuse_all(line: wire.LauncherConnection, hello: wire.Message) -> None:
    raise AssertionError(hello)


@pytest.mark.parametrize("text", [b"[" * 60000, b"\xff", b"GET / HTTP/1.1\r\n\r\n", b""])
def test_what_a_stranger_sends_ends_its_connection(text):
    async def send() -> bytes:
        async with listening(_refuse_all):
            reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
            writer.write(text)
            writer.write_eof()
            answer = await wire.await_with_timeout(reader.read(), 60)
            writer.close()
        return answer

    assert b"welcome" not in asyncio.run(send())


@pytest.mark.parametrize(
    ("secret", "run_id"),
    [("another0123456789", RUN), (SECRET, "8.0")],
    ids=["another secret", "another step"],
)
def test_another_step_is_refused_before_anything_is_said(monkeypatch, secret, run_id):
    monkeypatch.setattr(wire, "choose_rendezvous_port", lambda *_: PORT)

    async def try_it() -> None:
        async with listening(_refuse_all):
            with pytest.raises(wire.LauncherProtocolError, match="no launcher answers"):
                await wire.connect_to_controller("127.0.0.1", run_id, secret, {"node": 1})

    asyncio.run(try_it())


def test_silent_strangers_on_the_ports_before_cost_little_time():
    async def try_it() -> None:
        with contextlib.ExitStack() as silent:
            for port in range(PORT, PORT + job_ports.PORTS - 1):
                silent.enter_context(socket.create_server(("127.0.0.1", port)))

            async def answer(line: wire.LauncherConnection, hello: wire.Message) -> None:
                line.send({"you": hello["node"]})
                await line.close()

            async with listening(answer):
                line = await wire.connect_to_controller("127.0.0.1", RUN, SECRET, {"node": 1})
                assert await line.receive() == {"you": 1}
                await line.close()

    asyncio.run(wire.await_with_timeout(try_it(), 60))


def test_dripping_strangers_keep_no_launcher_out():
    async def drip(writers: list[asyncio.StreamWriter]) -> None:
        while True:
            for writer in writers:
                writer.write(b"\x16")
            await asyncio.sleep(0.05)

    async def try_it() -> None:
        async def answer(line: wire.LauncherConnection, hello: wire.Message) -> None:
            line.send(hello)
            await line.close()

        async with listening(answer):
            writers = [(await asyncio.open_connection("127.0.0.1", PORT))[1] for _ in range(256)]
            dripping = asyncio.create_task(drip(writers))
            for node in range(20):
                line = await wire.connect_to_controller("127.0.0.1", RUN, SECRET, {"node": node})
                assert await line.receive() == {"node": node}
                await line.close()
            dripping.cancel()
            for writer in writers:
                writer.transport.abort()

    asyncio.run(wire.await_with_timeout(try_it(), 60))


def test_a_relay_reads_and_says_nothing():
    """The stranger of a node takes the first port and relays to the controller on the next."""
    seen, heard = bytearray(), []

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while content := await reader.read(1 << 16):
                seen.extend(content)
                writer.write(content)
        writer.close()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", PORT + 1)
        await asyncio.gather(copy(reader, back), copy(there, writer))

    async def try_it() -> None:
        async def serve(line: wire.LauncherConnection, hello: wire.Message) -> None:
            heard.append(hello)
            line.send({"MASTER_ADDR": "10.1.0.1"})
            with contextlib.suppress(wire.LauncherProtocolError):
                heard.append(await line.receive())
            await line.close()

        stranger = await asyncio.start_server(relay, "0.0.0.0", PORT)
        async with stranger, listening(serve):
            line = await wire.connect_to_controller(
                "127.0.0.1", RUN, SECRET, {"tell": "restart: a secret"}
            )
            assert await line.receive() == {"MASTER_ADDR": "10.1.0.1"}
            await line.close()

    asyncio.run(wire.await_with_timeout(try_it(), 60))
    assert heard == [{"tell": "restart: a secret"}]
    assert seen
    for word in (b"a secret", b"MASTER_ADDR", b'"tell"'):
        assert word not in seen


def test_a_listener_outlives_errors_of_accept(monkeypatch):
    async def try_it() -> None:
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, [errno.EMFILE, errno.ECONNABORTED, errno.ENOMEM]

        async def fail_first(listener: socket.socket) -> object:
            if failures:
                raise OSError(failures.pop(), "accept fails")
            return await accept(listener)

        monkeypatch.setattr(loop, "sock_accept", fail_first)

        async def answer(line: wire.LauncherConnection, hello: wire.Message) -> None:
            line.send(hello)
            await line.close()

        async with listening(answer):
            line = await wire.connect_to_controller("127.0.0.1", RUN, SECRET, {"node": 1})
            assert await line.receive() == {"node": 1}
            await line.close()

    asyncio.run(wire.await_with_timeout(try_it(), 60))


def test_a_listener_without_descriptors_closes_a_stranger(monkeypatch):
    async def try_it() -> None:
        loop = asyncio.get_running_loop()
        accept, failures = loop.sock_accept, []
        connected = asyncio.Event()

        async def fail_in_between(listener: socket.socket) -> object:
            if failures:
                raise OSError(failures.pop(), "accept fails")
            taken = await accept(listener)
            failures.append(errno.EMFILE)
            connected.set()
            return taken

        monkeypatch.setattr(loop, "sock_accept", fail_in_between)
        monkeypatch.setattr(wire, "HANDSHAKE_S", 600.0)

        async def answer(line: wire.LauncherConnection, hello: wire.Message) -> None:
            await line.close()

        async with listening(answer):
            reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
            await connected.wait()
            assert await reader.read(1) == b""
            writer.close()

    asyncio.run(wire.await_with_timeout(try_it(), 60))


def test_a_launcher_is_out_of_the_strangers_room_before_it_learns_that_it_is_proven(monkeypatch):
    release, send, order = HandshakeLimiter.release, wire.LauncherConnection.send, []

    def note_release(pool: HandshakeLimiter, connection: socket.socket) -> None:
        order.append("released")
        release(pool, connection)

    def note_send(line: wire.LauncherConnection, message: wire.Message) -> None:
        order.extend(message)
        send(line, message)

    monkeypatch.setattr(HandshakeLimiter, "release", note_release)
    monkeypatch.setattr(wire.LauncherConnection, "send", note_send)

    async def try_it() -> None:
        async def answer(line: wire.LauncherConnection, hello: wire.Message) -> None:
            await line.close()

        async with listening(answer):
            line = await wire.connect_to_controller("127.0.0.1", RUN, SECRET, {"node": 1})
            await line.close()

    asyncio.run(wire.await_with_timeout(try_it(), 60))
    assert order[:3] == ["hello", "released", "welcome"]


def test_a_launcher_that_has_named_itself_stays_among_strangers(monkeypatch):
    """It takes its time in the handshake, and strangers come."""
    monkeypatch.setattr(wire, "HANDSHAKE_S", 60.0)

    async def try_it() -> None:
        async def answer(line: wire.LauncherConnection, hello: wire.Message) -> None:
            line.send(hello)
            await line.close()

        async with listening(answer):
            peer = await asyncio.to_thread(socket.create_connection, ("127.0.0.1", PORT))
            first = create_client_hello(create_signed_peer_name(SECRET))
            peer.sendall(first)
            strangers = []
            for _ in range(3 * UNPROVEN):
                strangers.append(await asyncio.open_connection("127.0.0.1", PORT))
            peer.setblocking(False)
            came = await asyncio.get_running_loop().sock_recv(peer, 1 << 16)
            assert came[:1] == b"\x16"  # the controller's part of the handshake
            await asyncio.sleep(0.2)
            with pytest.raises(BlockingIOError):
                peer.recv(1 << 16)
            peer.close()
            assert await strangers[0][0].read(1) == b""
            for _, writer in strangers:
                writer.transport.abort()

    asyncio.run(wire.await_with_timeout(try_it(), 60))


def create_client_hello(name: str) -> bytes:
    """Return the first message of a launcher that names itself so."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = wire.create_launcher_tls_context(SECRET, RUN)
    client = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def test_an_account_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "account.json"
    pen = RankGroupRecorder(path, "7.3")
    pen.record_generation_start(0, "", ["a", "b"])
    answer = account.read_rank_group_record(path)
    assert (answer.verdict, answer.exit_code, answer.troubles) == ("running", None, ())
    trace = "Traceback (most recent call last):\n  File x\nKeyError: 'w'"
    first = RankFailure(1, "b", 1, 10.0, "KeyError", "'w'", trace)
    pen.record_generation_end(
        "rank 1", [first, RankFailure(0, "a", 143, 9.0, "X", "broken pipe", "")]
    )
    pen.record_generation_start(1, "/c/step-5", ["a", "b"])
    pen.record_group_end(
        EndRankGroupOrder(RankGroupResult.FINAL, 93, "rank 0 ..."), [RankFailure(0, "a", 93, 11.0)]
    )
    answer = account.read_rank_group_record(path)
    assert (answer.run_id, answer.verdict, answer.exit_code, answer.restarts) == (
        "7.3", "final", 93, 1,
    )  # fmt: skip
    assert answer.generations[1].resumed_from == "/c/step-5"
    crash, final = answer.troubles
    assert (crash.kind, crash.rank, crash.node, crash.exit_code) == (TroubleKind.CRASH, 1, "b", 1)
    assert "KeyError" in crash.signature
    assert (final.kind, final.exit_code, list(tmp_path.iterdir())) == (
        TroubleKind.FINAL,
        93,
        [path],
    )


@pytest.mark.parametrize("text", ["", "{}", '{"format": "hpctl-elastic", "version": 2}'])
def test_malformed_account_is_refused(tmp_path, text):
    (tmp_path / "a").write_text(text)
    with pytest.raises(HpctlError):
        account.read_rank_group_record(tmp_path / "a")


def test_waiting_too_long_raises_the_builtin_error() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(wire.await_with_timeout(asyncio.sleep(5), 0.01))
    assert asyncio.run(wire.await_with_timeout(asyncio.sleep(0, "done"), 5)) == "done"


def test_attempts_that_are_not_needed_end_without_a_word():
    """Many launchers come at once: the next ports are tried, and some fail as they are ended."""
    said = []

    async def try_it() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(context["message"]))

        async def fail() -> wire.LauncherConnection:
            raise ConnectionRefusedError

        ended = [asyncio.ensure_future(fail()) for _ in range(2)]
        await asyncio.wait(ended[:1])
        for task in ended:
            wire.cancel_connect_attempt(task)
        await asyncio.wait(ended)
        failing = loop.create_future()
        late = asyncio.ensure_future(wire.await_with_timeout(failing, 60))
        await asyncio.sleep(0)
        failing.set_exception(ConnectionRefusedError())
        wire.cancel_connect_attempt(late)
        await asyncio.wait([late])
        await asyncio.sleep(0)

    asyncio.run(try_it())
    gc.collect()
    assert said == []


def test_a_connection_that_comes_too_late_is_closed():
    async def try_it() -> bool:
        closed = []
        line = mock.Mock(abort=lambda: closed.append(True))
        coming = asyncio.get_running_loop().create_future()
        late = asyncio.ensure_future(wire.await_with_timeout(coming, 60))
        await asyncio.sleep(0)
        coming.set_result(line)
        wire.cancel_connect_attempt(late)
        await asyncio.wait([late])
        await asyncio.sleep(0)
        return bool(closed) or late.cancelled()

    assert asyncio.run(try_it())
