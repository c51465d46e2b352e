"""From a fault to the job running elsewhere, undisturbed and while strangers attack, in turn.

One sandbox. The attackers are users without rights (tests/adversary): hostile jobs in the queue,
thousands of connections that never finish, floods of reports about jobs that are unknown. Memory is
that of the daemon, its intake and all else below it, four times a second while they attack.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.table import Outcome, Row, median
from tests.adversary.bed import Attack, Siege, begin, besieged, memory_mb
from tests.live import until

ROUNDS = int(os.environ.get("BENCH_ATTACK_ROUNDS", "7"))
BAR, MEMORY_BAR_MB = 1.2, 300.0
CONNECTIONS, WORDS = 2000, 40
UNKNOWN = b'{"v":1,"job_report":{"job":4000000000,"restarts":0,"wish":"requeue"}}'


def run() -> Outcome:
    """Calm and attacked in turn, so that neither has the machine's better hour."""
    calm: list[float] = []
    attacked: list[float] = []
    memory: list[float] = []
    with besieged() as siege:
        for _ in range(ROUNDS):
            calm.append(_round(siege))
            with _watched(siege.pid, memory):
                attackers = _begin(siege)
                jobs = [_hostile(siege, number) for number in range(20)]
                attacked.append(_round(siege))
            for one in attackers:
                one.result()
            siege.sandbox.run(["scancel", *map(str, jobs)])
            siege.holds()
    before, now = median(calm), median(attacked)
    rival = "the same cluster, undisturbed"
    return Outcome(
        "attack",
        [
            Row("fault to job running, attacked", now, "s", rival, before, before * BAR),
            Row("attacked / undisturbed", now / before, "x", rival, 1.0, BAR),
            Row("memory of daemon and children, most", max(memory), "MB", bar=MEMORY_BAR_MB),
        ],
        [
            f"{ROUNDS} faults each; each {2 * CONNECTIONS} connections, {WORDS} reports, 20 jobs",
            "undisturbed: " + " ".join(f"{s:.2f}" for s in calm),
            "attacked: " + " ".join(f"{s:.2f}" for s in attacked),
        ],
    )


@contextmanager
def _watched(pid: int, memory: list[float]) -> Iterator[None]:
    """Note the memory of a process and of all below it, four times a second."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.25):
            memory.append(memory_mb(pid))

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def _round(siege: Siege) -> float:
    """One fault; all is in service again afterwards."""
    taken = siege.heals()
    until(lambda: not siege.live.state().open_nodes, 60, "every node is back")
    return taken


def _begin(siege: Siege) -> list[Attack]:
    def crowd(sent: str, drip: str) -> Attack:
        return begin("crowd", port=siege.port, count=CONNECTIONS, begin=sent, drip=drip, seconds=6)

    found = [crowd("", ""), crowd("POST /v1/reports HTTP/1.1\r\nX: ", "x")]
    for one in found:
        one.ready()
    flood = {"path": "/v1/jobs", "body": UNKNOWN.hex(), "munge_socket": siege.munge}
    return [*found, begin("flood", port=siege.port, times=WORDS, width=8, **flood)]


def _hostile(siege: Siege, number: int) -> int:
    name = f"--job-name=x{number} UserId=root(0) JobState=RUNNING NodeList=a[1-99999]"
    return siege.sbatch("--begin=now+9hours", name, '--comment=hpctl:{"policy":{"restarts":1e999}}')
