"""The web page at 2,000 nodes: first paint and update in Chromium, the server with ten viewers.

The page is a process as an operator starts it, beside a daemon's world with a month of journal,
which is offered anew every ten seconds. Nine viewers hold streams, the tenth is Chromium. While
they look a recovery opens every five seconds. The rival of the server is `hpctl status` once a
second, which ten people might watch.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

from msgspec.structs import replace
from playwright.sync_api import Page, sync_playwright

from benchmarks import scontrol_text
from benchmarks.past import Past
from benchmarks.table import Outcome, Row, median
from benchmarks.world import CLOCK, World, instance_id, node_name, xid
from hpctl.engine.config import ClusterSection, Config
from hpctl.engine.journal.events import Event, NodeRecoveryOpened
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.leadership import Leadership, LeaseTerms
from hpctl.engine.loop import RecoveryCycleResult
from hpctl.engine.view import PlanningView
from hpctl.engine.world_server import WorldServer
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.identity import BootId, NodeGeneration, RecoveryId, RuleId
from hpctl.vocabulary.policy import OperatingMode, RecoveryPolicy

NODES, JOBS, VIEWERS, DAYS = 2000, 200, 10, 30
RUNS, WATCH_S, EVERY_S, CYCLE_S = 5, 60.0, 5.0, 10.0
PAINTED = """() => new Promise(done => new PerformanceObserver(seen => {
    for (const { startTime } of seen.getEntriesByName("first-contentful-paint")) done(startTime);
}).observe({ type: "paint", buffered: true }))"""
PAINT_BAR_S, UPDATE_BAR_MS, SERVER_BAR = 1.0, 100.0, 2.0


def run() -> Outcome:
    """Everything in one process of the page."""
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as name:
        folder = Path(name)
        daemon = Daemon(folder)
        with _page(folder) as (url, pid), sync_playwright() as playwright:
            as_root = ["--no-sandbox"] * (os.geteuid() == 0)
            browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=as_root)
            page = browser.new_page()
            page.goto(url)
            home = "{0.scheme}://{0.netloc}/".format(urlsplit(url))
            paints = []
            for _ in range(RUNS):
                page.goto(home)
                paints.append(float(page.evaluate(PAINTED)) / 1000)
            stop = _nine_others(home, page)
            updates, share = _busy(page, pid, daemon)
            quiet = _spent_s(pid)
            page.wait_for_timeout(1e3 * WATCH_S / 2)
            idle = 100 * (_spent_s(pid) - quiet) / (WATCH_S / 2)
            stop.set()
            browser.close()
        rival = 100 * _status_s(folder)
        daemon.close()
    what = f"{NODES:,} nodes"
    seen, took = [one[0] for one in updates], [one[1] for one in updates]
    rows = [
        Row(f"{what}: first paint", median(paints), "s", bar=PAINT_BAR_S),
        Row("the browser's work for an update", median(took), "ms", bar=UPDATE_BAR_MS),
        Row(f"server, {VIEWERS} viewers, an event every {EVERY_S:.0f} s", share, "%",
            "hpctl status once a second", rival, SERVER_BAR),
        Row("server, the same, nothing happens", idle, "%", bar=SERVER_BAR),
        Row("from the daemon's cycle to the browser", median(seen), "s"),
    ]  # fmt: skip
    return Outcome(
        "page: the web page at 2,000 nodes",
        rows,
        [f"a journal of {DAYS} days; the longest update took the browser {max(took):.1f} ms"],
    )


class Daemon:
    """A journal, and the world that a daemon with it offers."""

    def __init__(self, folder: Path) -> None:
        self._world = World(NODES, JOBS)
        self._store = _filled(folder, self._world)
        self._memory = JournaledState(self._store)
        self._state = self._memory.state
        me = DaemonIdentity("bench", os.getpid(), "0", "assist", "")
        leadership = Leadership(self._store, me, LeaseTerms(3600.0, shared=False), CLOCK)
        leadership.try_to_lead()
        config = Config(state_dir=folder, cluster=ClusterSection("none", "bench"))
        self._server = WorldServer(config, leadership, self._memory)
        self._offering, self._ended = threading.Lock(), threading.Event()
        self._offer()
        self._server.start()
        self._thread = threading.Thread(target=self._cycle, daemon=True)
        self._thread.start()

    def _cycle(self) -> None:
        while not self._ended.wait(CYCLE_S):
            with self._offering:
                self._offer()

    def _offer(self) -> None:
        now = CLOCK.now()
        view = PlanningView(
            scheduler=replace(self._world.slurm, as_of=now),
            provider=self._world.cloud,
            health=self._world.health(),
            assessments={},
            state=self._state,
        )
        self._server.offer(
            RecoveryCycleResult(now, view, RecoveryPolicy(mode=OperatingMode.ASSIST))
        )

    def append(self, event: Event) -> None:
        """Write an event down and offer the world with it."""
        with self._offering:
            self._memory.append([event])
            self._offer()

    def close(self) -> None:
        """Offer no more."""
        self._ended.set()
        self._thread.join()
        self._server.stop()
        self._store.close()


def _nine_others(home: str, page: Page) -> threading.Event:
    """Have streams read beside the browser's, until the event is set."""
    cookie = "; ".join(f"{c['name']}={c['value']}" for c in page.context.cookies())
    stop = threading.Event()
    for _ in range(VIEWERS - 1):
        threading.Thread(target=_look, args=(home, cookie, stop), daemon=True).start()
    page.wait_for_timeout(5000)
    return stop


def _busy(page: Page, pid: int, daemon: Daemon) -> tuple[list[tuple[float, float]], float]:
    """How soon each event is seen, in seconds, the browser's work for it, in ms, and the share of a
    core that the server takes meanwhile."""
    begun, before, updates = time.monotonic(), _spent_s(pid), list[tuple[float, float]]()
    while time.monotonic() - begun < WATCH_S:
        name = node_name(len(updates) + 1)
        daemon.append(_opened(len(updates) + 1))
        at = time.monotonic()
        page.wait_for_selector(f"a.cell.healing[id='n-{name}']")
        took = float(page.evaluate("document.body.dataset.took"))
        updates.append((time.monotonic() - at, took))
        page.wait_for_timeout(max(0.0, 1e3 * (EVERY_S - (time.monotonic() - at))))
    return updates, 100 * (_spent_s(pid) - before) / (time.monotonic() - begun)


def _filled(folder: Path, world: World) -> JournalStore:
    past, now = Past(NODES), CLOCK.now()
    scontrol_text.install(world, folder)
    leaves = []
    for n in range(0, NODES, 50):
        names = ",".join(node_name(n + k) for k in range(50))
        leaves.append(f"SwitchName=leaf-{n // 50:02} Level=0 LinkSpeed=1 Nodes={names}\n")
    (folder / "topology").write_text("".join(leaves))
    (folder / "hpctl.yaml").write_text(
        f"mode: assist\nstate_dir: {folder}\nslurm: {{bin: {folder}, adapter: cli}}\n"
    )
    store = JournalStore(f"sqlite:///{folder}/journal.db")
    store.take_lease(DaemonIdentity("bench", 1, "0", "assist", ""), None, now, 3600)
    for day in range(DAYS, 0, -1):
        store.append(list(past.day(now - timedelta(days=day))))
    store.record(list(world.health().values()))
    return store


def _opened(number: int) -> NodeRecoveryOpened:
    now, where = CLOCK.now(), NodeGeneration(node_name(number), instance_id(number), BootId("b-1"))
    return NodeRecoveryOpened(
        now, RecoveryId(f"n-bench{number:03}"), where, RuleId("xid-79"), "GPU fell off the bus",
        Urgency.NOW, (Remedy.REBOOT,), "xid-79", "assist", findings=(xid("79", now),),
    )  # fmt: skip


@contextmanager
def _page(folder: Path) -> Iterator[tuple[str, int]]:
    command = [sys.executable, "-m", "hpctl", "page", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--config", str(folder / "hpctl.yaml")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process:
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.terminate()


def _look(url: str, cookie: str, stop: threading.Event) -> None:
    """One viewer: a stream after the other, as a browser opens them."""
    at, since = urlsplit(url), "0"
    while not stop.is_set():
        with socket.create_connection((at.hostname, at.port), 60) as line, line.makefile() as lines:
            ask = f"GET /live?path=/&since={since} HTTP/1.1\r\nhost: {at.netloc}\r\n"
            line.sendall(f"{ask}cookie: {cookie}\r\n\r\n".encode())
            for text in lines:
                since = text[4:].strip() if text.startswith("id: ") else since
                if stop.is_set() or text == "0\n":
                    break


def _spent_s(pid: int) -> float:
    """Seconds of processor of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _status_s(folder: Path) -> float:
    before = os.times()
    config = str(folder / "hpctl.yaml")
    subprocess.run(
        [sys.executable, "-m", "hpctl", "status", "--config", config],
        capture_output=True,
        check=False,
    )
    after = os.times()
    return (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
