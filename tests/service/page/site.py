"""The page's real server on loopback, over a real journal; Slurm and the cloud are values."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from hpctl.engine.config import parse_config
from hpctl.engine.journal.events import Event
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import JournalStore
from hpctl.service.intake.server import UvicornServerThread
from hpctl.service.page.access import StatusPageAccess
from hpctl.service.page.app import BOUNDS, StatusPageStreamer, make_status_page_application
from hpctl.service.page.follow import StatusPagePoller
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.cli import worlds
from tests.waiting import PATIENCE_S

HEAD = DaemonIdentity("head-1", 4711, "0.1.0", "own", "head-1:8470")
TOKEN = b"0123456789abcdef" * 2


class Reads(Struct):
    """A scheduler or a provider that answers what stands here."""

    answer: SchedulerView | CloudProviderView
    topology: dict[NodeName, str]

    def view(self) -> SchedulerView | CloudProviderView:
        return self.answer

    def leaves(self) -> dict[NodeName, str]:
        return self.topology


class MonotonicClock:
    """A monotonic clock that moves where a test passes time."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def follower(place, patch, slurm, cloud=None, health=(), leaves=None, ticks=time.monotonic):
    """One that has looked once."""
    config = parse_config(f"state_dir: {place}\nkill_switch: {place}/STOP\nmode: assist\n")
    store = JournalStore(config.url)
    store.record(health)
    store.take_lease(HEAD, store.daemon(), worlds.at(-600), 30.0)
    store.renew_lease(worlds.at(89.5), 30.0, 0.012, "", "own")
    store.close()
    patch.setattr("hpctl.service.page.follow.get_current_utc_time", lambda: worlds.NOW)
    patch.setattr("hpctl.service.page.follow.OFFLINE_S", (0.0, 0.0))
    for module in ("hpctl.service.page.follow", "hpctl.engine.adapters"):
        patch.setattr(f"{module}.make_slurm_command_client", lambda _: Reads(slurm, leaves or {}))
    patch.setattr(
        "hpctl.engine.adapters.make_cloud_provider", lambda _: Reads(cloud or worlds.cloud(), {})
    )
    made = StatusPagePoller(config, ticks)
    made.look(5.0)
    return made


def append(place: Path, events: Sequence[Event]) -> None:
    """What the daemon would write."""
    store = JournalStore(f"sqlite:///{place}/journal.db")
    store.take_lease(HEAD, store.daemon(), worlds.at(-600), 30.0)
    store.append(events)
    store.renew_lease(worlds.at(89.5), 30.0, 0.012, "", "own")
    store.close()


@contextmanager
def served(made: StatusPagePoller, access: StatusPageAccess) -> Iterator[str]:
    """The server, and its address."""
    hub = StatusPageStreamer(made)
    server = UvicornServerThread(
        make_status_page_application(hub, access), "127.0.0.1", bounds=BOUNDS
    )
    server.start()
    try:
        yield server.url
    finally:
        hub.close()
        server.stop()
        made.close()


def get(url, path, *, method="GET", **headers):
    """One answer, by a connection of its own."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    connection.request(
        method, path, headers={"authorization": f"Bearer {TOKEN.decode()}", **headers}
    )
    answer = connection.getresponse()
    found = answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read().decode()
    connection.close()
    return found


def events(url: str, path: str, since: int = 0) -> Iterator[str]:
    """The data of a stream's events, one by one."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as line:
        ask = f"GET /live?path={path}&since={since} HTTP/1.1\r\nhost: {host}\r\n"
        line.sendall(f"{ask}authorization: Bearer {TOKEN.decode()}\r\n\r\n".encode())
        with line.makefile(encoding="utf-8") as lines:
            yield from (one[6:] for one in lines if one.startswith("data: "))


def holder() -> StatusPageAccess:
    """Access for whoever has TOKEN."""
    token: Callable[[], bytes] = lambda: TOKEN  # noqa: E731
    return StatusPageAccess(token)
