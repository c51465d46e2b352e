"""A simulated cluster: machines with faults, their agents, the network, Slurm and the cloud.

Physics runs on the true time; hpctl reads a wall clock that may jump. No threads, no sleeping.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.engine.test_reservation import PREFIX
from hpctl.faults.health import RESET_CHECK as CHECK
from hpctl.faults.health import RESET_DONE as DONE
from hpctl.faults.health import RESET_FAILED as FAILED
from hpctl.faults.hma_marks import MARKS, find_hma_reason_mark
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary import evidence
from hpctl.vocabulary.evidence import EvidenceCollectionOrder
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.vocabulary.model import TEST_SUMMARY, AgentReport, ClearCondition, DeviceVerdict, Finding
from hpctl.vocabulary.reset_order import GpuResetOrder
from tests.fakes.provider import FakeProvider
from tests.fakes.scheduler import SimSlurm

T0 = datetime(2026, 3, 1, tzinfo=UTC)


class Clock:
    """Time that the test owns: the true time, and a wall clock that somebody may set."""

    def __init__(self) -> None:
        self.true = T0
        self.offset = timedelta()

    def now(self) -> datetime:
        """The wall clock."""
        return self.true + self.offset

    def physical(self) -> datetime:
        """The time that passes whatever the wall clock says."""
        return self.true

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return (self.true - T0).total_seconds()


class Defect(Struct, frozen=True):
    """Broken hardware: what the kernel says, and what it takes to fix it.

    `lost`: the machine answers nobody. `kills`: the jobs on it die by themselves. `slow`: what only
    a test finds, and only another instance cures.
    """

    code: str
    detail: str = ""
    reboot_cures: bool = True
    lost: bool = False
    kills: bool = False
    slow: bool = False


XIDS = ("79", "48", "63", "94", "74", "64", "119", "13", "31")
RESET_CURES = ("48", "63", "94")
DEFECTS = (
    Defect("79", slow=True), Defect("94", slow=True), *(Defect(code) for code in XIDS),
    Defect("79", reboot_cures=False, kills=True), Defect("64", reboot_cures=False),
    Defect("48", kills=True), Defect("154", "Node Reboot Required", reboot_cures=False),
    Defect("154", "Drain and Reset"), Defect("", lost=True),
    Defect("", lost=True, reboot_cures=False),
)  # fmt: skip


class Machine(Struct):
    """One node's hardware and agent."""

    node: str
    generation: NodeGeneration
    started: datetime
    defect: Defect | None = None
    findings: tuple[Finding, ...] = ()
    seq: int = 0
    agent_silent: bool = False
    slurmd_dead: bool = False
    slow: bool = False
    heard: float = 0.0
    """When a report of it last arrived, in seconds of the true time."""
    next_beat: datetime = T0


class Network(Struct):
    """What becomes of reports on their way."""

    lose: int = 0
    delay: int = 0
    double: int = 0
    late: list[tuple[datetime, AgentReport]] = field(default_factory=list)


class World:
    """Everything outside hpctl. `inbox` takes reports and raises where it cannot."""

    def __init__(self, size: int, *, automatic: bool = False, protected: int = 0) -> None:
        self.clock = Clock()
        self.names = [f"n{i}" for i in range(1, size + 1)]
        self.provider = FakeProvider(
            self.names,
            now=self.clock.physical,
            wall=self.clock.now,
            automatic=automatic,
            protected=self.names[size - protected :],
        )
        self.machines = {
            n: Machine(n, self.provider.generation(n), self.clock.now()) for n in self.names
        }
        self.slurm = SimSlurm(self.names, self.clock.now, self.alive, self._boot)
        self.network = Network()
        self.automatic = automatic
        self.treated: set[str] = set()
        self.tested: dict[int, Machine] = {}
        self.passed: set[NodeGeneration] = set()
        self.afflicted: dict[str, list[Defect]] = {}
        self._away_until = {"slurm": 0.0, "cloud": 0.0}

    def alive(self, node: str) -> bool:
        """Whether its slurmd answers."""
        return self.runs(node) and not self.machines[node].slurmd_dead

    def runs(self, node: str) -> bool:
        """Whether the machine itself runs."""
        machine = self.machines[node]
        return self.provider.up(node) and not (machine.defect is not None and machine.defect.lost)

    def _boot(self, node: str) -> str:
        return str(self.machines[node].generation.boot)

    @property
    def cloud_away(self) -> bool:
        """Whether the cloud's API cannot be reached."""
        return self.clock.monotonic() < self._away_until["cloud"]

    def away(self, what: str, seconds: float) -> None:
        """`slurm` or `cloud` does not answer for a while."""
        self._away_until[what] = self.clock.monotonic() + seconds
        self._slurm_away()

    def _slurm_away(self) -> None:
        self.slurm.away = self.clock.monotonic() < self._away_until["slurm"]

    def breaks(self, node: str, defect: Defect) -> None:
        """Hardware fails."""
        machine = self.machines[node]
        instance = self.provider.instance_of(node)
        if not self.provider.up(node):
            return
        self.afflicted.setdefault(instance, []).append(defect)
        machine.defect, machine.slow = defect, machine.slow or defect.slow
        self._say(machine, defect)
        if defect.kills:
            for job in list(self.slurm.jobs.values()):
                if job.running and node in job.nodes:
                    job.hit.append((self.clock.now(), node, job.restarts))
                    self.slurm.fail_job(job)

    def _say(self, machine: Machine, defect: Defect) -> None:
        if defect.code:
            now = self.clock.now()
            finding = Finding(
                "kernel.xid", DeviceVerdict.FAIL, now, now, "0000:3b:00", defect.code, defect.detail
            )
            same = [
                f for f in machine.findings if (f.code, f.detail) == (defect.code, finding.detail)
            ]
            if same:
                finding = replace(finding, first=same[0].first, count=same[0].count + 1)
            machine.findings = (*(f for f in machine.findings if f not in same), finding)

    def ordered(self, order: GpuResetOrder) -> None:
        """An agent that speaks takes an order of its own boot, once, and answers.

        It refuses one for another boot: the machine was another by the time the order came.
        """
        machine = self.machines[order.generation.node]
        if machine.agent_silent or not self.runs(machine.node):
            return
        if machine.generation != order.generation:
            return
        assert all(f.device != order.recovery for f in machine.findings), "reset twice"
        busy = [j for j in self.slurm.jobs.values() if j.running and machine.node in j.nodes]
        assert not busy, f"reset under {busy}"
        defect, now = machine.defect, self.clock.now()
        cured = defect is None or (defect.code in RESET_CURES and defect.reboot_cures)
        machine.defect = None if cured else defect
        code, verdict = (DONE, DeviceVerdict.OK) if cured else (FAILED, DeviceVerdict.WARN)
        said = Finding(CHECK, verdict, now, now, order.recovery, code, "words", "0000:3b:00")
        machine.findings += (said,)

    def keeps_evidence(self, order: EvidenceCollectionOrder) -> None:
        """An agent that speaks keeps the evidence of its own boot, and says so."""
        machine = self.machines[order.generation.node]
        if machine.agent_silent or not self.runs(machine.node):
            return
        if machine.generation != order.generation:
            return
        now, kept = self.clock.now(), evidence.describe_archive_size_and_digest(1234, "ab" * 32)
        said = Finding(
            evidence.EVIDENCE_CHECK,
            DeviceVerdict.OK,
            now,
            now,
            order.recovery,
            evidence.KEPT,
            "",
            kept,
        )
        machine.findings += (said,)

    def heals(self, node: str) -> None:
        """The fault goes away by itself; what was said stays said."""
        self.machines[node].defect = None

    def passes(self, seconds: float) -> None:
        """Time."""
        self.clock.true += timedelta(seconds=seconds)
        self.refresh()

    def refresh(self) -> None:
        """Do what is due in cloud, machines and Slurm."""
        self._slurm_away()
        self.provider.tick()
        for machine in self.machines.values():
            if self.provider.up(machine.node):
                self._boots(machine, self.provider.generation(machine.node))
        self.slurm.tick()
        self._tests_end()
        if self.automatic and not self.cloud_away and not self.slurm.away:
            self._service()

    def _boots(self, machine: Machine, generation: NodeGeneration) -> None:
        if machine.generation == generation:
            return
        fresh = machine.generation.instance != generation.instance
        machine.generation = generation
        machine.findings, machine.seq = (), 0
        machine.started = self.clock.now()
        defect = machine.defect
        machine.agent_silent = machine.slurmd_dead = False
        self._marked_since(machine)
        machine.slow &= not fresh
        if fresh or (defect is not None and defect.reboot_cures):
            machine.defect = None
        elif defect is not None:
            self._say(machine, defect)

    def _tests_end(self) -> None:
        """What a test of hpctl's has found on its node, which the agent there tells."""
        for job in self.slurm.jobs.values():
            if not job.reservation or job.state != "COMPLETED" or job.id in self.tested:
                continue
            self.tested[job.id] = machine = self.machines[job.nodes[0]]
            fails = machine.slow or machine.defect is not None
            if not fails:
                self.passed.add(machine.generation)
            now, test = self.clock.now(), job.name.removeprefix(PREFIX)
            machine.findings += tuple(
                Finding(check, verdict, now, now, test, code, clears=ClearCondition.GONE)
                for check, verdict, code in (
                    ("acceptance.gemm", DeviceVerdict.FAIL, "replace")
                    if fails
                    else ("acceptance.gemm", DeviceVerdict.OK, ""),
                    (TEST_SUMMARY, DeviceVerdict.OK, ""),
                )
            )

    def marks(self, node: str, mark: str, *, drain: bool = False) -> None:
        """HyperPod's health agent closes a node, rightly or not: its word makes the node ill.

        The word is about the node's name: about the instance that serves it, and while that is
        being replaced about the one that comes, of which hpctl may not know yet.
        """
        served = self.machines[node].generation.instance
        for instance in {served, self.provider.instance_of(node)}:
            self.afflicted.setdefault(instance, []).append(Defect("", mark))
        self.slurm.operator(node, **{"drain" if drain else "fail": mark})

    def _marked_since(self, machine: Machine) -> None:
        """A mark that is younger than the boot by the clock that was set back since is a word about
        that boot: to Slurm, to the service and to hpctl it looks like one that came after."""
        node = self.slurm.nodes[machine.node]
        mark, at = find_hma_reason_mark(self.slurm.node(node)), node.reason_at
        if mark and at is not None and at > self.clock.now():
            afflicted = self.afflicted.setdefault(machine.generation.instance, [])
            afflicted.append(Defect("", mark))

    def _service(self) -> None:
        """NodeRecovery=Automatic acts on a marked node that no job holds, and gives it back."""
        for name, node in self.slurm.nodes.items():
            shown = self.slurm.node(node)
            if shown.reason not in MARKS or shown.in_service:
                self.treated.discard(name)
            elif name in self.treated:
                if self.alive(name) and self.provider.up(name):
                    self.slurm.resume(node)
            elif (
                shown.state in ("IDLE", "DOWN")
                and "COMPLETING" not in shown.flags
                and self.provider.start_unrequested_recovery(self.provider.instance_of(name))
            ):
                self.treated.add(name)

    def speak(self, inbox: Callable[[AgentReport], None]) -> None:
        """Each agent that can sends what it knows; the network does what it does."""
        now = self.clock.now()
        net = self.network
        due = [r for at, r in net.late if at <= self.clock.true]
        net.late = [(at, r) for at, r in net.late if at > self.clock.true]
        for report in due:
            inbox(report)
            self.machines[report.node].heard = self.clock.monotonic()
        for machine in self.machines.values():
            if not self.runs(machine.node) or machine.agent_silent:
                continue
            report = self.report(machine, now)
            if net.lose > 0:
                net.lose -= 1
            elif net.delay > 0:
                net.delay -= 1
                net.late.append((self.clock.true + timedelta(seconds=25), report))
            else:
                inbox(report)
                machine.heard = self.clock.monotonic()
                if net.double > 0:
                    net.double -= 1
                    net.late.append((self.clock.true, report))

    def report(self, machine: Machine, now: datetime) -> AgentReport:
        """The next report of a machine's agent."""
        machine.seq += 1
        g = machine.generation
        return AgentReport(
            g.node, g.instance, g.boot, machine.seq, now, machine.started, machine.findings
        )

    def calm(self) -> None:
        """No more faults of any kind: network, Slurm, cloud and hardware all work from now on."""
        self.network = Network(late=self.network.late)
        self._away_until = {"slurm": 0.0, "cloud": 0.0}
        self.provider.unstick()
        for machine in self.machines.values():
            machine.agent_silent = machine.slurmd_dead = False
