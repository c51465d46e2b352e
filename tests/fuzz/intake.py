"""Raw bytes into the intake: uvicorn's protocol with its C parser, all routes, real refusals.

In process and without a network: the transport is one that writes things down. The first byte of
an input says in what pieces the rest comes. It fails by an answer of 500, by anything that uvicorn
or asyncio logs as an error, by an answer that is none, and by a connection that the bounds of
`Connections` have lost sight of.
"""

import asyncio
import logging
import re
from functools import cache
from pathlib import Path
from typing import Any, cast

from prometheus_client import CollectorRegistry
from uvicorn.server import ServerState

from hpctl.engine.clock import SystemClock
from hpctl.engine.request_intake import make_operator_request_route as request_route
from hpctl.jobs.report_intake import make_job_report_route as job_route
from hpctl.service.alerts import make_alert_routes as alert_routes
from hpctl.service.intake.app import make_agent_intake_app
from hpctl.service.intake.server import UvicornServerThread
from hpctl.wire import job_reports as job_wire
from hpctl.wire.authentication import IntakeAuthenticationSettings
from tests.intakes import Sink

ANSWER_S = 10.0
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_KNOWN = {b"100", b"200", b"400", b"401", b"403", b"404", b"405", b"408", b"413", b"422", b"503"}
TOKEN = "opensesame-opensesame"

REPORT = b"POST /v1/reports HTTP/1.1\r\nHost: h\r\n"
SEEDS = (
    b"\0GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n",
    b"\0GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    b"\x07" + REPORT + b"Content-Length: 7\r\nAuthorization: MUNGE AwQ=\r\n\r\n" + b'{"v":1}',
    b"\x20" + REPORT + b"Authorization: HPCTL 0123:4567\r\nContent-Length: 2\r\n\r\n{}",
    b"\0" + REPORT + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
    b"2\r\n{}\r\n0\r\n\r\n",
    b"\0POST /v1/jobs HTTP/1.1\r\nContent-Length: 2\r\nAuthorization: MUNGE x\r\n\r\n{}",
    b"\0POST /v1/requests HTTP/1.1\r\nContent-Length: 2\r\nAuthorization: MUNGE x\r\n\r\n{}",
    b"\0POST /v1/alerts HTTP/1.1\r\nContent-Length: 31\r\n"
    b'Authorization: Bearer opensesame-opensesame\r\n\r\n{"version":"4","alerts":[null]}',
    b"\0HEAD /%2e%2e/?a=b HTTP/1.0\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n",
)  # fmt: skip


class Broken(AssertionError):
    """The intake did what it must not, whatever it is sent."""


class _Errors(logging.Handler):
    """What uvicorn and asyncio say that went wrong."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


class _Written(asyncio.Transport):
    """A client's connection: what was written to it, and whether it was hung up."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000), "sockname": ("127.0.0.1", 8470)})
        self.out, self.closing = b"", False

    def write(self, data) -> None:
        self.out += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def _taken(body: bytes) -> dict[str, int]:
    """Alertmanager's notifications, at a desk that takes what can be read."""
    return {"taken": len(body)}


class _Intake:
    """The application as the intake's process makes it, with munged away."""

    def __init__(self, directory: Path) -> None:
        token = directory / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        registry, settings = (
            CollectorRegistry(),
            IntakeAuthenticationSettings(directory / "no-munged"),
        )
        ack = lambda *_: job_wire.JobReportAck(7, acts=True)  # noqa: E731
        app = make_agent_intake_app(
            settings, Sink(), {"n1": "127.0.0.1"}.get, registry,
            routes=[
                *alert_routes(token, _taken, registry),
                job_route(ack, settings, SystemClock(), registry),
                request_route(lambda *_: 1, settings, registry),
            ],
        )  # fmt: skip
        self.server = UvicornServerThread(app)
        self.config = self.server._server.config
        self.config.load()
        self.loop = asyncio.new_event_loop()
        self.errors = _Errors()
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addHandler(self.errors)
            logging.getLogger(name).propagate = False

    async def one(self, raw: bytes) -> bytes:
        """All that a client that sends this is answered."""
        state, wire = ServerState(), _Written()
        protocol = cast(Any, self.config.http_protocol_class)(self.config, state, {})
        protocol.connection_made(wire)
        size = raw[0] or len(raw) if raw else 1
        for at in range(1, len(raw), size):
            if wire.closing:
                break
            protocol.data_received(raw[at : at + size])
            await asyncio.sleep(0)
        if protocol.cycle is not None and not protocol._unread:
            # The whole request is here: it is answered before the client goes.
            await _ended(state)
        protocol.connection_lost(None)
        await _ended(state)
        if len(self.server.connections):
            raise Broken("a connection that is gone is still counted")
        return wire.out


async def _ended(state: ServerState) -> None:
    if state.tasks:
        _, late = await asyncio.wait(state.tasks, timeout=ANSWER_S)
        if late:
            raise Broken("a request that nobody waits for any more goes on")


@cache
def _intake(directory: Path) -> _Intake:
    return _Intake(directory)


def run(raw: bytes, directory: Path) -> None:
    """One client. Raises Broken."""
    intake = _intake(directory)
    intake.errors.said.clear()
    out = intake.loop.run_until_complete(intake.one(raw))
    if intake.errors.said:
        raise Broken("\n".join(intake.errors.said))
    if out and not out.startswith(b"HTTP/1.1 "):
        raise Broken(f"no answer of HTTP: {out[:80]!r}")
    if unknown := set(_STATUS.findall(out)) - _KNOWN:
        raise Broken(f"an answer of {unknown}: {out[:200]!r}")
