"""A running intake that remembers what it accepted, and a client that speaks to it."""

import http.client
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpctl.service.intake.app import make_agent_intake_app
from hpctl.service.intake.server import UvicornServerThread
from hpctl.vocabulary.model import AgentReport, Finding
from hpctl.wire import munge
from hpctl.wire import reports as wire
from hpctl.wire.authentication import IntakeAuthenticationSettings
from tests.munged import ADDRESSES, Realm
from tests.reports import beat, report
from tests.waiting import PATIENCE_S


def post(port, path, body, headers, peer="127.0.0.1"):
    """What an intake answers to a body that comes from a TCP address."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", port, timeout=PATIENCE_S, source_address=(peer, 0)
    )
    connection.request("POST", path, body, dict(headers))
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    return response.status, answer


def announced(port: int, path: str, size: int, authorization: str = "") -> int:
    """The status that an intake answers to the size of a body of which nothing is sent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.putrequest("POST", path)
    connection.putheader("Content-Length", str(size))
    connection.putheader("Authorization", authorization)
    connection.endheaders()
    status = connection.getresponse().status
    connection.close()
    return status


def get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def refused(port: int, counter: str) -> dict[str, int]:
    """How often an intake has refused something, by code."""
    found = re.findall(rf'^{counter}_total\{{code="(\w+)"\}} (\S+)$', get(port, "/metrics"), re.M)
    return {code: int(float(count)) for code, count in found}


class Sink:
    """A `ReportSink` of two functions."""

    def __init__(self, accept=lambda *_: None, heard=lambda _: False):
        self.accept, self.heard = accept, heard


class Head:
    """A running intake, what it accepted, and a client's view of it."""

    def __init__(self, realm: Realm, **settings) -> None:
        self.realm = realm
        self.accepted: list[AgentReport] = []
        self.accept: Callable[[AgentReport], None] = self.accepted.append
        self.store_all: Callable[..., None] = self.store
        self.beats: list[wire.Heartbeat] = []
        self.heard: Callable[[wire.Heartbeat], bool] = lambda _: False
        self.address_of: Callable[[str], str | None] = ADDRESSES.get
        self.order_for: Callable[[str], str | None] = lambda _: None
        self._options = IntakeAuthenticationSettings(**{"munge_socket": realm.head, **settings})
        self.server = self._made()

    def _made(self, port: int = 0) -> UvicornServerThread:
        sink = Sink(lambda *reports: self.store_all(*reports), lambda beat: self.heard(beat))
        app = make_agent_intake_app(
            self._options,
            sink,
            lambda node: self.address_of(node),
            order_for=lambda node: self.order_for(node) or "",
        )
        return UvicornServerThread(app, "127.0.0.1", port)

    def come_back(self) -> None:
        """Serve again on the same port after `server.stop`."""
        self.server = self._made(self.server.port)
        self.server.start()

    def store(self, *reports: AgentReport) -> None:
        for each in reports:
            self.accept(each)

    def post(self, body, authorization, peer=ADDRESSES["n1"]):
        """From a TCP address, which is n1's for most."""
        headers = {} if authorization is None else {"Authorization": authorization}
        return post(self.server.port, wire.PATH, body, headers, peer)

    def send(
        self, what: AgentReport | bytes, munged: Path | None = None
    ) -> tuple[int, dict[str, Any]]:
        body = what if isinstance(what, bytes) else wire.encode_agent_report(what)
        peer = ADDRESSES["n2" if munged == self.realm.n2 else "n1"]
        return self.post(body, credential(munged or self.realm.n1, body), peer)

    def get(self, path: str) -> str:
        return get(self.server.port, path)

    def refused(self) -> dict[str, int]:
        return refused(self.server.port, "hpctl_reports_refused")


def credential(munged: Path, body: bytes) -> str:
    return (
        f"MUNGE {munge.encode_munge_credential(wire.make_request_credential_payload(body), munged)}"
    )


class Session:
    """A session of a node with a head, opened by a first report as an agent does it."""

    def __init__(self, head: Head, node: str = "n1", munged: Path | None = None) -> None:
        self.head, self.node = head, node
        munged = munged or head.realm.n1
        body = wire.encode_agent_report(report(node), open_session=True)
        status, answer = head.post(body, credential(munged, body), ADDRESSES[node])
        assert status == 200, answer
        self.granted = answer["session"]
        self.key = munge.decode_munge_credential(self.granted["key"], munged).payload
        self.seq = 1

    def signed(self, body: bytes) -> str:
        return wire.make_session_authorization(self.granted["id"], self.key, body)

    def send(self, body: bytes) -> tuple[int, dict[str, Any]]:
        return self.head.post(body, self.signed(body), ADDRESSES[self.node])

    def report(self) -> bytes:
        self.seq += 1
        return wire.encode_agent_report(report(self.node, self.seq))

    def heartbeat(self, seq: int = 0, findings: tuple[Finding, ...] = ()) -> bytes:
        self.seq += 1
        return wire.encode_heartbeat(beat(self.node, seq or self.seq, findings))
