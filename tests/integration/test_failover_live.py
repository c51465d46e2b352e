"""Leaders are killed and frozen in the middle of recoveries of a real Slurm; both databases."""

import json
import os
import random
import statistics
import subprocess
import sys
import time
from contextlib import closing

import pytest
import yaml

from hpctl.core.compat import SAFE_PATH
from hpctl.core.journal import StepStarted
from hpctl.sandbox.bootplan import child_env, environment
from hpctl.wiring import open_store
from tests.contract.journal.servers import MariaDB, PostgreSQL
from tests.examples import SEED
from tests.integration.chaos import cluster
from tests.integration.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.nightly]

ROUNDS = int(os.environ.get("HPCTL_TEST_FAILOVERS", "5"))
# Agents know the first head alone: a recovery that the second one leads waits for them at its end.
PATIENT = {"node": {"rejoin_deadline_s": 600.0, "verify_deadline_s": 600.0}}


class Second:
    """A second head of a sandbox, on another port."""

    def __init__(self, live) -> None:
        spec, first = live.sandbox.spec, yaml.safe_load(live.sandbox.config_path.read_text())
        self.address = f"{spec.head_address}:{spec.ports.intake + 900}"
        self.first = first["intake"]["listen"]
        both = {"heads": [f"http://{one}" for one in (self.first, self.address)]}
        intake = first["intake"]
        live.sandbox.config_path.write_text(
            yaml.safe_dump(first | both | {"intake": intake | {"advertise": self.first}})
        )
        folder = live.sandbox.config_path.parent
        mine = {"listen": self.address, "advertise": self.address}
        self.config = folder / "second.yaml"
        own = both | {"intake": intake | mine, "state_dir": str(folder / "second")}
        self.config.write_text(yaml.safe_dump(first | own))
        command = [sys.executable, *SAFE_PATH, "hpctl", "daemon", "run", "--config"]
        with (spec.layout.logs / "second.out").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, str(self.config)],
                env={**child_env(spec), **environment(spec)},
                stdout=log,
                stderr=log,
            )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def leader(live) -> str:
    info = live.daemon()
    return info.address if info.lease_s else ""


def failed_over(live, second, how: str) -> float:
    """End or freeze the first head in the middle of it: seconds until the second leads."""
    with closing(open_store(live.config)) as store:
        live.sandbox.signal_service("daemon", how)
        begun = time.monotonic()
        while store.daemon().address != second.address:
            assert time.monotonic() - begun < 30, "the second leads"
            time.sleep(0.02)
        return time.monotonic() - begun


def handed_back(live, second, how: str) -> None:
    """The first head comes back as the standby, and is handed the lease."""
    if how == "SIGKILL":
        live.sandbox.start_daemon()
    else:
        live.sandbox.signal_service("daemon", "SIGCONT")
    ready = ["failover", "--to", second.first, "--json"]
    until(lambda: json.loads(live.hpctl(*ready, "--dry-run", check=False))["ok"], 90, "it is ready")
    until(lambda: json.loads(live.hpctl(*ready, "--wait", check=False))["done"], 60, "handed over")
    assert leader(live) == second.first


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("database", [MariaDB, PostgreSQL])
def test_recoveries_outlive_their_leaders(database) -> None:
    server, dice, times = database(), random.Random(SEED), []
    try:
        with cluster({"database_url": server.fresh(), **PATIENT}, nodes=6) as live:
            second = Second(live)
            try:
                preview = ["failover", "--dry-run", "--json"]
                until(lambda: json.loads(live.hpctl(*preview, check=False))["ok"], 60, "ready")
                # The first head reads its list of heads as well.
                live.sandbox.signal_service("daemon", "SIGTERM")
                live.sandbox.start_daemon()
                until(lambda: leader(live) == second.address, 20, "the second leads")
                handed_back(live, second, "")
                for number in range(ROUNDS):
                    how = "SIGKILL" if number % 2 else "SIGSTOP"
                    victims = live.victims(2)
                    job = live.start("sleep 600", f"--nodelist={victims[0]}")
                    live.xid(*victims)
                    time.sleep(dice.uniform(0.0, 1.5))
                    times.append(failed_over(live, second, how))
                    handed_back(live, second, how)
                    for victim in victims:
                        live.returned(victim, 90)
                    until(lambda job=job: live.running(job, 1), 60, "the job runs again")
                    live.sandbox.run(["scancel", str(job)])
                live.settle()
                with closing(open_store(live.config)) as store:
                    steps = [e for e in store.events() if isinstance(e, StepStarted)]
            finally:
                second.close()
    finally:
        server.stop()
    keys = [(s.recovery, s.step, s.attempt, s.target) for s in steps]
    assert len(keys) == len(set(keys)), "no step was begun twice under one number"
    times.sort()
    where, p99 = database.__name__, times[int(0.99 * len(times))]
    print(f"\n{where}: {ROUNDS} fail-overs: p50 {statistics.median(times):.2f}, p99 {p99:.2f} s")
    assert statistics.median(times) < 5
    assert p99 < 10
