"""One node breaks under a job, end to end: the story that the crash tests tell again and again."""

from msgspec import Struct
from msgspec.structs import replace

from hpctl.daemon.kinds import KINDS
from hpctl.faults.catalogue import build_fault_rules as catalogue_rules
from hpctl.jobs.kind import JOBS
from hpctl.vocabulary.policy import AcceptanceTestPolicy, OperatingMode, RecoveryPolicy
from tests.engine.machine.daemon import Daemon
from tests.engine.machine.oracle import Oracle
from tests.engine.machine.world import Defect, World

assert JOBS in KINDS, "the story rests on the recoveries of jobs"

RULES = catalogue_rules()
POLICY = RecoveryPolicy(mode=OperatingMode.OWN)
TESTED = AcceptanceTestPolicy(replace="quick", reboot="quick")
BROKEN = Defect("79", reboot_cures=False, kills=False)
"""A GPU off the bus, for good: rebooted, faulty again, replaced, healthy, given back."""
LASTS_S = 2000.0


class Variant(Struct, frozen=True):
    """What else goes wrong. `second_actor_s`: when the service replaces the node by itself."""

    name: str
    defect: Defect = BROKEN
    lost_replies: int = 0
    second_actor_s: float | None = None
    restart_s: float = 0.0
    nodes: int = 1
    tests: bool = False


VARIANTS = (
    Variant("plain"), Variant("slow-restart", restart_s=45.0),
    Variant("lost-replies", lost_replies=2), Variant("second-actor", second_actor_s=4.0),
    Variant("second-actor-later", second_actor_s=62.0),
    Variant("job-dies-by-itself", Defect("79", reboot_cures=False, kills=True)),
    Variant("machine-lost", Defect("", lost=True, reboot_cures=False)),
    Variant("two-nodes", nodes=2), Variant("test-fails", Defect("79", slow=True), tests=True),
)  # fmt: skip


class End(Struct, frozen=True):
    """How it ended, as far as it must not depend on crashes."""

    job: str
    job_on_sick_node: bool
    orders: tuple[tuple[str, str, str], ...]
    in_service: tuple[str, ...]
    open: int


class Story:
    """A world with a training job on four nodes, and a daemon."""

    def __init__(self, variant, policy=POLICY, journal=None, reopen=None):
        self.variant = variant
        policy = replace(policy, acceptance=TESTED) if variant.tests else policy
        self.world = World(8)
        self.job = self.world.slurm.submit(4, 50_000.0)
        self.oracle = Oracle(self.world, policy)
        self.daemon = Daemon(self.world, policy, RULES, journal, self.oracle, reopen)
        self.oracle.daemon = self.daemon
        self._crashes = 0
        self._born = [self.world.provider.instance_of(n) for n in self.world.names]

    def sick(self) -> list[str]:
        """The nodes that break."""
        return self.world.names[: self.variant.nodes]

    def play(self) -> End:
        """From health to health."""
        self.pass_time(1.0)
        self.world.provider.lose_reply(self.variant.lost_replies)
        for node in self.sick():
            self.world.breaks(node, self.variant.defect)
        begun = self.world.clock.monotonic()
        acted = self.variant.second_actor_s is None
        while (spent := self.world.clock.monotonic() - begun) < LASTS_S:
            if not acted and spent >= (self.variant.second_actor_s or 0.0):
                acted = True
                self.world.provider.start_unrequested_recovery(self._born[0])
            self.pass_time(0.5 if spent < 10 else 5.0 if spent < 300 else 20.0)
        self.oracle.ended_well()
        return self.end()

    def pass_time(self, seconds: float) -> None:
        self.world.passes(seconds)
        self.daemon.run()
        if self.daemon.crashes > self._crashes and self.variant.restart_s:
            self.world.passes(self.variant.restart_s)
        self._crashes = self.daemon.crashes

    def continues(self, seconds: float) -> None:
        """Time in steps of five seconds."""
        for _ in range(int(seconds / 5)):
            self.pass_time(5.0)

    def end(self) -> End:
        """What counts."""
        slurm = self.world.slurm
        job = slurm.jobs[self.job]
        return End(
            job.state,
            any(slurm.nodes[n].drained for n in job.nodes),
            # A reboot in doubt may be ordered once more; a replacement never is (see _good).
            tuple(sorted({(o.kind, o.instance, o.by) for o in self.world.provider.orders})),
            tuple(n for n, v in slurm.nodes.items() if not v.drained and not v.down),
            len(self.oracle.open()),
        )
