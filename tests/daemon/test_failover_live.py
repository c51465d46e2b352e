"""Leaders are killed and frozen in the middle of recoveries of a real Slurm; both databases."""

import json
import os
import random
import re
import statistics
import time
from collections import Counter
from contextlib import closing

import pytest

from hpctl.engine.adapters import open_journal_reader
from hpctl.engine.journal.events import StepStarted
from hpctl.vocabulary.recovery import StepKind
from tests.daemon.chaos import Chaos, cluster
from tests.examples import SEED
from tests.live import until

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.nightly]

ROUNDS = int(os.environ.get("HPCTL_TEST_FAILOVERS", "5"))
ORDERED = re.compile(r"update_node: node (\S+) state set to (DRAIN|DOWN)")


def failed_over(live: Chaos, how: str, victim: str) -> tuple[str, float, float]:
    """End or freeze the leader, and break a node while nobody leads: the service that led, when
    that was, and how many seconds later the other one leads."""
    with closing(open_journal_reader(live.config)) as store:
        led = store.daemon()
        service = "daemon-2" if led.address.startswith("127.0.0.2") else "daemon"
        live.sandbox.signal_service(service, how)
        begun = time.monotonic()
        live.xid(victim)
        while store.daemon().epoch == led.epoch:
            assert time.monotonic() - begun < 30, "the standby leads"
            time.sleep(0.02)
        return service, begun, time.monotonic() - begun


def one_round(live: Chaos, how: str, grace_s: float) -> tuple[float, float]:
    """Fail over with a recovery open: how many seconds that took, and the job that was hit
    meanwhile took to run again."""
    ready = ["daemon", "failover", "--dry-run", "--json"]
    until(lambda: json.loads(live.hpctl(*ready, check=False))["ok"], 60, "a standby is ready")
    job = live.start("sleep 600")
    (hit,) = map(str, live.job(job).nodes)
    (early,) = live.victims(1)
    live.xid(early)
    time.sleep(grace_s)
    service, begun, took = failed_over(live, how, hit)
    while not live.running(job, 1):
        assert time.monotonic() - begun < 60, "the job runs again"
        time.sleep(0.05)
    healed = time.monotonic() - begun
    if how == "SIGKILL":
        live.sandbox.start_service(service)
    else:
        live.sandbox.signal_service(service, "SIGCONT")
    for victim in (early, hit):
        live.returned(victim, 90)
        assert len(live.of(victim)) == 1, "one report, one recovery"
    assert live.job(job).restarts == 1
    live.sandbox.run(["scancel", str(job)])
    return took, healed


def orders(live: Chaos) -> Counter[tuple[str, str]]:
    """The nodes that slurmctld was told to drain or set down, and how often."""
    return Counter((node, kind) for node, kind in ORDERED.findall(live.log("slurmctld.log")))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("database", ["mariadb", "postgresql"])
def test_recoveries_outlive_their_leaders(database):
    dice, took, beyond = random.Random(SEED), [], []
    with cluster(nodes=6, heads=2, database=database) as live:
        for number in range(ROUNDS):
            how = "SIGKILL" if number % 2 else "SIGSTOP"
            one, healed = one_round(live, how, dice.uniform(0.0, 1.5))
            print(f"{database} {number} {how}: {one:.2f} s, job {healed:.2f} s", flush=True)
            took.append(one)
            beyond.append(healed - one)
        live.settle()
        with closing(open_journal_reader(live.config)) as store:
            steps = [e for e in store.events() if isinstance(e, StepStarted)]
        ordered = orders(live)
        # slurmctld fails over as well, and the daemon that leads goes on with the backup.
        live.sandbox.kill_slurmctld()
        job = live.submit("sleep 600")
        until(lambda: live.running(job), 60, "the backup controller answers")
        live.xid(hit := str(*live.job(job).nodes))
        live.returned(hit, 90)
    keys = [(s.recovery, s.step, s.attempt, s.target) for s in steps]
    assert len(keys) == len(set(keys)), "no step was begun twice under one number"
    kinds = {StepKind.DRAIN: "DRAIN", StepKind.DOWN: "DOWN"}
    begun = Counter((s.target, kinds[s.step]) for s in steps if s.step in kinds)
    assert ordered, "slurmctld logs what it is told"
    assert not ordered - begun, "a deposed leader gave orders"
    p50, p99 = statistics.median(took), sorted(took)[int(0.99 * len(took))]
    print(
        f"\n{database}: {ROUNDS} fail-overs: p50 {p50:.2f}, p99 {p99:.2f}, max {max(took):.2f} s;"
    )
    print(f"job after it: p50 {statistics.median(beyond):.2f}, max {max(beyond):.2f} s")
    assert p50 < 5
    assert p99 < 10
    assert statistics.median(beyond) < 2
