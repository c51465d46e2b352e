"""How long nobody leads: leaders killed and frozen, beside slurmctld's own backup controller.

Each database has a sandbox of two heads with real daemons, slurmctlds and agents. The clock starts
with the signal and stops when the lease's row names another epoch. The rival is killed in the same
sandbox: its clock stops when the backup answers `scontrol show nodes`.
"""

import json
import sys
import time
from collections.abc import Callable
from contextlib import closing

from benchmarks.table import Outcome, Row, median, p99
from hpctl.engine.adapters import open_journal_reader
from hpctl.engine.config import read_config_file
from hpctl.engine.journal.store import JournalStore
from hpctl.sandbox.api import Sandbox

ROUNDS = 8
TIMEOUT_S = 10
"""The sandbox's SlurmctldTimeout for two controllers; Slurm's default is 120 s."""
MOST_S = 60.0
RIVAL = f"slurmctld's backup, SlurmctldTimeout={TIMEOUT_S}"


def run() -> Outcome:
    """Both databases, or the one that is installed."""
    rows, notes = [], [f"{ROUNDS} rounds a database, every other one a kill; p99 is the longest"]
    for name in ("mariadb", "postgresql"):
        with Sandbox(f"bench-{name}", heads=2, nodes=1, daemon=True, database=name) as sandbox:
            took = [_leader_ends(sandbox, ("SIGKILL", "SIGSTOP")[n % 2]) for n in range(ROUNDS)]
            rival = _controller_ends(sandbox)
        what = f"leader's end to the next one's lease, {name}"
        for which, ours, bar in (("p50", median(took), 5.0), ("p99", p99(took), 10.0)):
            rows.append(Row(f"{what}, {which}", ours, "s", RIVAL, rival, bar))
    return Outcome("failover", rows, notes)


def _leader_ends(sandbox: Sandbox, how: str) -> float:
    """Seconds until the other one leads; it stands by again afterwards."""
    _until(lambda: _standby_is_ready(sandbox), "a standby")
    with closing(open_journal_reader(read_config_file(sandbox.config_path))) as store:
        epoch, service = _led(store)
        sandbox.signal_service(service, how)
        begun = time.monotonic()
        _until(lambda: _led(store)[0] != epoch, "another leader")
        took = time.monotonic() - begun
    if how == "SIGKILL":
        sandbox.start_service(service)
    else:
        sandbox.signal_service(service, "SIGCONT")
    return took


def _led(store: JournalStore) -> tuple[int, str]:
    """The epoch, and the service that leads."""
    info = store.daemon()
    if info is None:
        return 0, ""
    return info.epoch, "daemon-2" if info.address.startswith("127.0.0.2:") else "daemon"


def _standby_is_ready(sandbox: Sandbox) -> bool:
    hpctl = [
        sys.executable,
        "-m",
        "hpctl",
        "daemon",
        "failover",
        "--dry-run",
        "--json",
        "--config",
        str(sandbox.config_path),
    ]
    return bool(json.loads(sandbox.run(hpctl, check=False).stdout or "{}").get("ok"))


def _controller_ends(sandbox: Sandbox) -> float:
    """Seconds until the backup controller answers in place of one that was killed."""
    sandbox.kill_slurmctld()
    begun = time.monotonic()
    _until(lambda: sandbox.run(["scontrol", "show", "nodes"], check=False).returncode == 0, "Slurm")
    return time.monotonic() - begun


def _until(test: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + MOST_S
    while not test():
        if time.monotonic() > until:
            raise TimeoutError(f"no {what} within {MOST_S:.0f} s")
        time.sleep(0.02)
