"""What launchers say to each other, and the account that they leave."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from hpctl.jobs.elastic import controller as account
from hpctl.jobs.elastic import wire
from hpctl.jobs.elastic.controller import AccountWriter, GroupController, GroupTiming
from hpctl.jobs.elastic.group import EndGroup, GroupVerdict, RankFailure, RestartLimits
from hpctl.jobs.elastic.options import LauncherPlace
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.trouble import Kind
from hpctl.wire import job_ports

SECRET = "0123456789abcdef"


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """A server on a free port, which is told."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=wire.LIMIT)
    try:
        yield server.sockets[0].getsockname()[1]
        await asyncio.sleep(0.05)  # for the other end to see that it was left
    finally:
        server.close()
        await server.wait_closed()


async def _met(server_secret: str, client_secret: str) -> list[object]:
    seen: list[object] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line, hello = await wire.accept(reader, writer, server_secret)
            seen.append(hello)
            while True:
                seen.append(await line.receive())
        except wire.ProtocolError as error:
            seen.append(str(error))
        writer.close()

    async with listening(serve) as port:
        try:
            line = await wire.connect("127.0.0.1", port, client_secret, {"node": 1})
            for message in ({"beat": 1}, {"long": "x" * wire.LIMIT}, {"never": "seen"}):
                line.send(message)
            await asyncio.sleep(0.2)
            await line.close()
        except wire.ProtocolError as error:
            seen.append(f"client: {error}")
    return seen


def test_a_line_too_long_ends_the_connection():
    seen = asyncio.run(_met(SECRET, SECRET))
    assert seen[:2] == [{"node": 1}, {"beat": 1}]
    assert seen[2:] == ["connection lost (LimitOverrunError)"]


class _Nobody(asyncio.Transport):
    """The other end of a line, of which only what is fed to the reader is heard."""

    def is_closing(self) -> bool:
        """StreamWriter asks this when it is collected, from Python 3.13 on."""
        return True


async def _suspended(jump_s: float) -> wire.Message:
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    writer = asyncio.StreamWriter(_Nobody(), asyncio.Protocol(), reader, loop)
    clock, stopped = loop.time, [0.0]
    loop.time = lambda: clock() + stopped[0]
    heard = asyncio.create_task(wire.Connection(reader, writer).receive_within(15.0))
    await asyncio.sleep(0)
    stopped[0] = jump_s
    for _ in range(10):
        await asyncio.sleep(0.001)
    reader.feed_data(b'{"beat": 1}\n')
    return await heard


def test_a_suspended_job_is_not_silent():
    assert asyncio.run(_suspended(7200.0)) == {"beat": 1}


async def _told_the_end(place: LauncherPlace) -> wire.Message:
    controller = GroupController(
        place, RestartLimits(), GroupTiming(), AccountWriter(None, place.run_id), {}
    )
    await controller.listen()
    group = asyncio.create_task(controller.run())
    first = job_ports.first_port(place.secret, place.run_id)
    hello = {"node": 0, "ranks": 1, "host": "n1"}
    for port in range(first, first + job_ports.PORTS):
        with contextlib.suppress(OSError, wire.ProtocolError):
            line = await wire.connect("127.0.0.1", port, place.secret, hello)
            break
    while "end" not in (message := await line.receive_within(10)):
        pass
    await line.close()
    await group
    return message


def test_a_start_that_fails_for_whatever_reason_is_told(tmp_path, monkeypatch):
    def find_start(*_, **__) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr("hpctl.jobs.elastic.controller.find_generation_start", find_start)
    ran = asyncio.run(_told_the_end(LauncherPlace(0, 1, "n1", "127.0.0.1", str(tmp_path), SECRET)))
    assert ran["code"] == 1
    assert "out of memory" in ran["why"]


@pytest.mark.parametrize("text", [b"[" * 60000, b"\xff", b"7", b'{"nonce": 7}', b""])
def test_whatever_a_stranger_sends_is_refused(text):
    async def answered() -> str:
        refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await wire.accept(reader, writer, SECRET)
            except wire.ProtocolError as error:
                refused.set_result(str(error))
            writer.close()

        async with listening(serve) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(text + b"\n")
            found = await refused
            writer.close()
        return found

    assert asyncio.run(answered()) in ("not a message", "no nonce")


def test_a_wrong_secret_is_refused_before_anything_is_said():
    seen = asyncio.run(_met(SECRET, "another0123456789"))
    assert "a stranger" in seen
    assert {"node": 1} not in seen


def test_a_server_that_does_not_know_the_secret_is_refused():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(b'{"nonce": "00"}\n')
            await reader.readline()
            writer.write(b'{"proof": "00"}\n')
            await reader.read()
        writer.close()

    async def impostor() -> None:
        async with listening(serve) as port:
            with pytest.raises(wire.ProtocolError, match="does not know the secret"):
                await wire.connect("127.0.0.1", port, SECRET, {"node": 1})

    asyncio.run(impostor())


def test_an_account_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "account.json"
    pen = AccountWriter(path, "7.3")
    pen.generation_began(0, "", ["a", "b"])
    answer = account.read_account(path)
    assert (answer.verdict, answer.exit_code, answer.troubles) == ("running", None, ())
    trace = "Traceback (most recent call last):\n  File x\nKeyError: 'w'"
    first = RankFailure(1, "b", 1, 10.0, "KeyError", "'w'", trace)
    pen.generation_over("rank 1", [first, RankFailure(0, "a", 143, 9.0, "X", "broken pipe", "")])
    pen.generation_began(1, "/c/step-5", ["a", "b"])
    pen.ended(EndGroup(GroupVerdict.FINAL, 93, "rank 0 ..."), [RankFailure(0, "a", 93, 11.0)])
    answer = account.read_account(path)
    assert (answer.run_id, answer.verdict, answer.exit_code, answer.restarts) == (
        "7.3", "final", 93, 1,
    )  # fmt: skip
    assert answer.generations[1].resumed_from == "/c/step-5"
    crash, final = answer.troubles
    assert (crash.kind, crash.rank, crash.node, crash.exit_code) == (Kind.CRASH, 1, "b", 1)
    assert "KeyError" in crash.signature
    assert (final.kind, final.exit_code, list(tmp_path.iterdir())) == (Kind.FINAL, 93, [path])


@pytest.mark.parametrize("text", ["", "{}", '{"format": "hpctl-elastic", "version": 2}'])
def test_what_is_no_account(tmp_path, text):
    (tmp_path / "a").write_text(text)
    with pytest.raises(HpctlError):
        account.read_account(tmp_path / "a")


def test_waiting_too_long_raises_the_builtin_error() -> None:
    with pytest.raises(TimeoutError):
        asyncio.run(wire.wait_for(asyncio.sleep(5), 0.01))
    assert asyncio.run(wire.wait_for(asyncio.sleep(0, "done"), 5)) == "done"
