"""A real agent process under a log storm: no fault lost, few reports, no memory, no delay."""

import os
import time
from pathlib import Path

import pytest

from hpctl.detection import send
from tests.agent_process import AgentProcess
from tests.intakes import Head
from tests.waiting import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
RATE = 30_000
SECONDS = 10
STEP = 600
"""Lines that are written at once."""
STORM = "NVRM: Xid (PCI:0000:10:00): 95, pid={pid}, name=python, Uncontained: FBHUB. RST: Yes"
NOISE = "systemd-journald[512]: Data hash table of /var/log/system.journal has {n} entries left"
FAULTS = [
    f"NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid=1, name=python, trouble"
    for bus in (0x10, 0x2A, 0x3B, 0xC1)
    for code in (48, 62, 74, 79, 94, 95, 119)
] + ["nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"]
SMALL_FRY = 200
"""Distinct unknown codes beside the faults: what many reports would be sent about."""


class Inbox(Head):
    """A head node that notes when it heard of what."""

    def __init__(self, realm):
        super().__init__(realm)
        self.first: dict[tuple[str, str], float] = {}
        self.accept = self._take

    def _take(self, report):
        self.accepted.append(report)
        for finding in report.findings:
            self.first.setdefault((finding.device, finding.code), time.monotonic())

    def count(self) -> int:
        """How often the storm's own error is known to have been written."""
        return sum(
            f.count
            for f in (self.accepted[-1].findings if self.accepted else ())
            if f.code == "95" and f.device == "0000:10:00.0"
        )


@pytest.fixture
def head(munges):
    inbox = Inbox(munges)
    inbox.server.start()
    yield inbox
    inbox.server.stop()


@pytest.fixture
def agent(head: Inbox, tmp_path):
    made = AgentProcess(tmp_path, head.server.url, head.realm.n1)
    made.start(HPCTL_AGENT_HEARTBEAT_S="2")
    yield made
    assert made.end() == 0, made.log()
    made.kmsg.unlink()


def lines(number: int) -> list[str]:
    """The storm's lines of one step: the rare ones each stand once in the whole storm."""
    first = number * STEP
    texts = [
        NOISE.format(n=n) if n % 5 < 2 else STORM.format(pid=1000 + n % 8)
        for n in range(first, first + STEP)
    ]
    steps = RATE * SECONDS // STEP
    rare = [*FAULTS, *(f"NVRM: Xid (PCI:0000:66:00): {1000 + n}, new" for n in range(SMALL_FRY))]
    mine = [text for n, text in enumerate(rare) if n * steps // len(rare) == number]
    for place, text in enumerate(mine):
        texts[7 + place * 5] = text
    return texts


def storm(kmsg: Path) -> tuple[float, int]:
    """Write RATE lines a second. When the first fault was written, and how many storm lines."""
    begun = time.monotonic()
    own, seq = 0, 0
    with kmsg.open("ab", buffering=0) as file:
        for number in range(RATE * SECONDS // STEP):
            texts = lines(number)
            own += sum("10:00): 95," in text for text in texts)
            stamp = time.monotonic_ns() // 1000
            file.write(
                "".join(f"4,{seq + n},{stamp},-;{t}\n" for n, t in enumerate(texts)).encode()
            )
            seq += len(texts)
            time.sleep(max(0.0, begun + (number + 1) * STEP / RATE - time.monotonic()))
    return begun, own


def cpu_s(agent: AgentProcess) -> float:
    fields = Path(f"/proc/{agent.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.timeout(300)
def test_a_storm_hides_no_fault_and_costs_few_reports(head: Inbox, agent: AgentProcess) -> None:
    until(lambda: head.accepted, 20)
    reports, memory, spent = len(head.accepted), agent.memory_kib(), cpu_s(agent)
    begun, own = storm(agent.kmsg)
    # Every line was read: the count of the storm's own error is exact, and comes with the next
    # heartbeat at the latest.
    until(lambda: head.count() == own, 200)
    took = time.monotonic() - begun
    sent = len(head.accepted) - reports
    grown, cpu = agent.memory_kib() - memory, cpu_s(agent) - spent
    print(
        f"storm of {RATE * SECONDS} lines in {took:.1f} s: {sent} reports, {grown} KiB,"
        f" {cpu:.1f} s of processor"
    )
    wanted = {
        (f"0000:{bus:02x}:00.0", str(code))
        for bus in (0x10, 0x2A, 0x3B, 0xC1)
        for code in (48, 62, 74, 79, 94, 95, 119)
    } | {("0000:05:00.0", "20034")}
    assert wanted - head.first.keys() == set()
    assert len(wanted) == 29
    assert sum(device == "0000:66:00.0" for device, _ in head.first) == SMALL_FRY
    # The first goes out at once, and at the end nothing is left waiting.
    assert head.first["0000:10:00.0", "95"] - begun < SECONDS / 2
    assert sent <= send.BURST + took / send.EVERY_S + took / 2 + 2
    assert grown < 6 * 1024
