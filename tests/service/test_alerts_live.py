"""The shipped alerts in a run with real faults: each fires once, and clears once.

A real Prometheus scrapes a real cluster by the configuration that `hpctl observability render`
writes, and a real Alertmanager tells what fires. Only the durations of the rules are shorter.
"""

import ctypes
import itertools
import json
import os
import re
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from docgen.alerts import ALERTS
from hpctl.sandbox.hardware import EmulatedSysfsTree, format_efa_name
from hpctl.vocabulary.spares_reservation import RESERVATION
from tests.daemon.chaos import Chaos, cluster
from tests.daemon.test_chaos_daemon import fill, small_disk
from tests.intakes import get
from tests.live import until as live_until
from tests.process import free_port, room
from tests.service.test_notify import Webhook
from tests.stubs import nvml
from tests.waiting import until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.nightly,
    pytest.mark.timeout(1200),
]

UNIT_S = {"m": 60, "h": 3600, "d": 86400}
SLOWEST_S = 240
MNT_DETACH = 2


def shortened(rules: str) -> str:
    """Rules whose windows, `for` and ages last 8 s to 2 minutes, the longer ones longer still: a
    window holds 12 scrapes or more, and `for` outlasts the 10 s after which the daemon counts
    again. What was lost or drained for nothing counts from the first second."""

    def shorter(seconds: float) -> int:
        return round(7.5 * (seconds / 60) ** 0.3)

    def span(found: re.Match[str]) -> str:
        return f"{found[1]}{shorter(int(found[2]) * UNIT_S[found[3]])}s"

    rules = re.sub(r"(\[|for: )(\d+)([mhd])\b", span, rules)
    rules = re.sub(r"time\(\) - (\d+)", lambda found: f"time() - {shorter(int(found[1]))}", rules)
    return re.sub(r"> (28800|86400)\b", "> 0", rules)


class AlertInbox:
    """What Alertmanager tells."""

    def __init__(self, hook: Webhook) -> None:
        self._hook = hook

    def all(self) -> dict[str, list[list[str]]]:
        """Of each alert but the one that always fires, for each set of its labels, the states in
        the order they were told in."""
        found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for alert in [alert for message in list(self._hook.got) for alert in message["alerts"]]:
            if alert["labels"]["alertname"] == "HpctlWatchdog":
                continue
            labels = str(sorted(alert["labels"].items()))
            found[alert["labels"]["alertname"]][labels].append(alert["status"])
        return {name: list(by.values()) for name, by in found.items()}

    def fires(self, names: set[str]) -> bool:
        return names <= self.all().keys()

    def clears(self, names: set[str]) -> None:
        """Wait until all of these have fired, and do no more."""

        def last(name: str) -> set[str]:
            return {states[-1] for states in self.all().get(name, ())}

        until(lambda: all(last(name) == {"resolved"} for name in names), SLOWEST_S)

    def once(self, names: set[str]) -> None:
        """These alerts and no others, each once and of one thing."""
        assert self.all() == {name: [["firing", "resolved"]] for name in names}


@contextmanager
def watched(live: Chaos):
    """Prometheus and Alertmanager over a cluster."""
    hook = Webhook()
    prometheus, alertmanager = (f"127.0.0.1:{free_port()}" for _ in range(2))
    route = {"receiver": "test", "group_by": ["..."], "group_wait": "0s", "group_interval": "1s"}
    receiver = {"name": "test", "webhook_configs": [{"url": hook.url.replace("json", "http", 1)}]}
    heads = [f"--head={url.removeprefix('http://')}" for url in live.sandbox.spec.head_intake_urls]
    with room() as place:
        told = {"route": route, "receivers": [receiver]}
        (place / "alertmanager.yml").write_text(json.dumps(told))
        to = [f"--out={place}", "--every=1s", f"--alertmanager={alertmanager}"]
        live.hpctl("observability", "render", *to, *heads)
        rules = place / "hpctl.rules.yml"
        rules.write_text(shortened(rules.read_text()))
        own = [f"--config.file={place}/prometheus.yml", f"--storage.tsdb.path={place}/data"]
        its = [f"--config.file={place}/alertmanager.yml", f"--storage.path={place}/alerts"]
        with (
            serving("prometheus-alertmanager", *its, "--cluster.listen-address=", alertmanager),
            serving("prometheus", *own, prometheus),
        ):
            # What was counted before the first scrape has not grown for Prometheus.
            until(lambda: scraped(prometheus) == len(heads), 60)
            yield AlertInbox(hook)
    hook.close()


def scraped(prometheus: str) -> int:
    """How many head nodes it has seen."""
    try:
        answer = get(int(prometheus.rpartition(":")[2]), "/api/v1/query?query=hpctl_leader")
        return len(json.loads(answer)["data"]["result"])
    except (OSError, ValueError):  # it starts
        return 0


@contextmanager
def serving(*command: str):
    """A server that listens at the last argument, until the end of the block."""
    *start, listen = command
    drop = ["setpriv", "--pdeathsig=KILL", "--"]
    process = subprocess.Popen(
        [*drop, *start, f"--web.listen-address={listen}"], stderr=subprocess.DEVNULL
    )
    try:
        yield
        assert process.poll() is None, f"{command[0]} ended by itself"
    finally:
        process.kill()
        process.wait()


Fault = tuple[set[str], Callable[[Chaos], Any]]
ROUNDS: list[list[Fault]] = [[] for _ in range(5)]
"""What each round breaks, and the alerts that tell of it; the first two break many things."""


def fault(number: int, *alerts: str):
    """A fault of a round. It yields nothing, or what must go on until the alerts fire."""

    def listed(breaks):
        ROUNDS[number].append((set(alerts), contextmanager(breaks)))
        return breaks

    return listed


@fault(0, "HpctlBlocked")
def a_check_is_broken(live: Chaos):
    """Three nodes at once call their GPUs broken. Somebody looks, and finds them healthy."""
    victims = live.sandbox.nodes[:3]
    live.xid(*victims, code=64)
    yield
    for node in victims:
        live.sandbox.scontrol("update", f"NodeName={node}", "State=RESUME")


@fault(0, "HpctlEscalated", "HpctlSparesUsedUp")
def the_spare_breaks(live: Chaos):
    spare = live.sandbox.nodes[-1]
    live.xid(spare, code=48)
    yield
    live.order("replace", spare)
    live.returned(spare)


@fault(0, "HpctlJobGivenUp", "HpctlTrainingTimeLow")
def a_job_loses_its_node_once_too_often(live: Chaos):
    """No other node is there for it, so that it stands still until this one is replaced."""
    node = live.sandbox.nodes[6]
    job = live.start("sleep 600", f"--exclude={','.join({*live.sandbox.nodes} - {node})}")
    live.xid(node)
    live_until(lambda: live.running(job, 1), 60, "it runs again")
    live_until(lambda: not live.state().open_jobs, 30, "it is proven")
    live.returned(node)
    live.xid(node)
    yield
    live.returned(node)
    live.sandbox.run(["scancel", str(job)])


@fault(1, "HpctlPaused")
def user_pauses(live: Chaos):
    live.hpctl("pause")
    yield
    live.hpctl("unpause")


@fault(1, "HpctlAgentsSilent")
def an_agent_hangs(live: Chaos):
    live.sandbox.inject(live.sandbox.nodes[3], "hang-agent")
    yield
    live.sandbox.inject(live.sandbox.nodes[3], "thaw-node")


@fault(1, "HpctlGpuResetPending")
def a_gpu_waits_for_the_end_of_a_job(live: Chaos):
    job = live.start("sleep 600", f"--nodelist={live.sandbox.nodes[5]}")
    live.sandbox.inject(live.sandbox.nodes[5], "gpu", index=0, answers={"field144": "1"})
    yield
    live.sandbox.run(["scancel", str(job)])


@fault(1, "HpctlGpuSlow")
def a_gpu_is_slow(live: Chaos):
    for clock in ("1200", "1980"):
        answers = {"nvmlDeviceGetClockInfo@1": clock}
        live.sandbox.inject(live.sandbox.nodes[6], "gpu", index=0, answers=answers)
        if clock == "1200":
            yield


@fault(1, "HpctlNicRetransmits")
def a_nic_sends_much_twice(live: Chaos):
    layout, turns = live.sandbox.spec.layout, itertools.count(1)
    trees = [
        EmulatedSysfsTree(layout.of_node(node) / "hardware") for node in live.sandbox.nodes[6:9]
    ]

    def send() -> None:
        turn = next(turns)
        for number, tree in enumerate(trees):
            tree.set(format_efa_name(0), "tx_pkts", 20_000 * turn)
            tree.set(format_efa_name(0), "retrans_pkts", 0 if number else 400 * turn)

    yield send


@fault(1, "HpctlMountSilent")
def a_file_server_is_silent(live: Chaos):
    """A mount that nobody serves: whoever asks it sleeps in the kernel."""
    node, libc = live.sandbox.nodes[7], ctypes.CDLL(None)
    (point := live.sandbox.spec.layout.of_node(node) / "hardware/fsx").mkdir()
    with Path("/dev/fuse").open("r+b", buffering=0) as unread:
        options = f"fd={unread.fileno()},rootmode=40000,user_id=0,group_id=0"
        assert libc.mount(b"silent", os.fsencode(point), b"fuse", 0, options.encode()) == 0
        try:
            row = "50 22 0:51 / /fsx rw - lustre 10.0.0.1@tcp:/abcd rw"
            live.sandbox.inject(node, "file", path="proc/self/mountinfo", text=row)
            yield
        finally:
            libc.umount2(os.fsencode(point), MNT_DETACH)


@fault(1, "HpctlCloudUnreadable")
def the_service_throttles(live: Chaos):
    live.sandbox.inject_api("throttle", for_s=SLOWEST_S)
    yield
    live.sandbox.inject_api("clear")


@fault(1, "HpctlHeadDown")
def the_standby_dies(live: Chaos):
    standby = "daemon" if live.daemon().address.startswith("127.0.0.2") else "daemon-2"
    live.sandbox.signal_service(standby, "SIGKILL")
    yield
    live.sandbox.start_service(standby)


@fault(2, "HpctlStepInDoubt")
def an_order_fails_in_the_service(live: Chaos):
    """Nobody knows whether it took effect, so hpctl waits before it orders again."""
    node = live.sandbox.nodes[4]
    live.sandbox.inject_api("internal-error", calls=1, operations="BatchReplaceClusterNodes")
    live.xid(node)
    yield
    live.returned(node, 90)


@fault(3, "HpctlJournalSlow")
def the_database_is_slow(live: Chaos):
    pid = live.sandbox.status()["services"]["database"]
    turns = f"while kill -STOP {pid}; do sleep 0.3; kill -CONT {pid}; sleep 0.01; done"

    def write() -> None:
        for order in ("pause", "unpause"):
            live.hpctl(order, check=False)

    with subprocess.Popen(["setpriv", "--pdeathsig=KILL", "sh", "-c", turns]) as slowing:
        try:
            yield write
        finally:
            slowing.kill()
    live.sandbox.signal_service("database", "SIGCONT")
    live.hpctl("unpause")


@fault(4, "HpctlNoLeader")
def the_database_hangs(live: Chaos):
    live.sandbox.signal_service("database", "SIGSTOP")
    yield
    live.sandbox.signal_service("database", "SIGCONT")


AFTERWARDS = {"HpctlFalseDrains"}
"""What the first round fires when healthy nodes are given back."""
ON_ONE_HEAD = {"HpctlDiskFull"}
"""Of two heads the other one would lead."""
ELSEWHERE = {
    *("HpctlDown", "HpctlStuck", "HpctlSlurmUnreadable", "HpctlAgentsLost", "HpctlDiskLow"),
    *("HpctlTargetMissing", "HpctlBudgetFull", "HpctlOffender", "HpctlInternalError"),
    *("HpctlNodesUnwatched", "HpctlAgentsUnscraped", "HpctlNotifierFails", "HpctlPartFails"),
    *("HpctlConfigurationRefused", "HpctlClockSkew", "HpctlWatchdog"),
}
"""What tests.service.metrics alone plays: over hpctl's own metrics, with promtool."""

CONFIG = {
    "node": {"remedy_after_s": 2.0, "doubt_window_s": 30.0},
    "job": {"max_restarts": 1},
    "budgets": {"correlated_min": 3},
    "spares": {"worker-10": 1},
    "catalogue": {"xid-48": {"ladder": ["ask_human"]}, "gpu-remap-pending": {"ladder": ["reboot"]}},
}
AGENT = {
    "expected": {"efa_devices": 1},
    "checks": {"host.mounts": {"every_s": 2}, "gpu.remap": {"every_s": 2}},
}


@pytest.mark.skipif(os.geteuid() != 0, reason="two heads need root")
def test_each_alert_fires_once_and_clears_once(tmp_path):
    alerts = {alert.name for alert in ALERTS}
    rounds = [set().union(*(names for names, _ in each)) for each in ROUNDS]
    covered = AFTERWARDS.union(*rounds)
    assert covered | ON_ONE_HEAD | ELSEWHERE == alerts
    stub = nvml.Stub(tmp_path).gpus(8)
    played = {
        "nvml_library": stub.env()["LD_LIBRARY_PATH"],
        "nvml_script": stub.script.read_text(),
        "hardware": {"efa": 1},
        "agent_config": AGENT,
    }
    # Ten groups of one node each: when the spare breaks, nobody is there to take its place.
    many = {"nodes": 10, "groups": 10, "heads": 2, "database": "mariadb"}
    with cluster(CONFIG, **many, **played) as live:
        reserved = live.scheduler.reservations
        live_until(lambda: bool(reserved().get(f"{RESERVATION}worker-10")), 60, "a spare is kept")
        with watched(live) as told:
            for number, names in enumerate(rounds):
                if number > 1:  # what the first round began lasts longer than the second
                    told.clears(AFTERWARDS.union(*rounds[:number]))
                play(ROUNDS[number], names, live, told)
            told.clears(covered)
            told.once(covered)


def play(faults: list[Fault], names: set[str], live: Chaos, told: AlertInbox) -> None:
    """Break what a round breaks, and mend it as soon as all its alerts fire."""
    with ExitStack() as broken:
        begun = [broken.enter_context(breaks(live)) for _, breaks in faults]

        def fire() -> bool:
            for continues in begun:
                if continues is not None:
                    continues()
            return told.fires(names)

        until(fire, SLOWEST_S, every=0.5)
    print(f"{time.strftime('%T')} fired and mended: {names}", flush=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk_fires_once_and_clears_once():
    with (
        small_disk(4) as disk,
        cluster({"state_dir": str(disk / "state")}, nodes=1) as live,
        watched(live) as told,
    ):
        fill(disk / "filler")
        # A recovery that cannot be written down is not begun, and nothing else goes on.
        live.sandbox.inject(*live.sandbox.nodes, "hma-reboot")
        until(lambda: told.fires(ON_ONE_HEAD), SLOWEST_S)
        (disk / "filler").unlink()
        told.clears(ON_ONE_HEAD)
        told.once(ON_ONE_HEAD)
