"""The world that the daemon offers is the one that a reader would compute from the same facts.

Random clusters, as in test_machine.py, played from fixed seeds. After each step the daemon's last
cycle goes through the encoding and back, and beside it the offline reader judges the same facts.
Two things differ by design, and only there may the two worlds: the daemon remembers since when it
has seen a node out of reach, and it counts silence sooner (made equal here by a lease of no time).
"""

import random
from collections import Counter
from pathlib import Path
from typing import Any

from hpctl.daemon.kinds import KINDS
from hpctl.engine.config import Config, RecoveryLoopSection
from hpctl.engine.journal.state import replay_events
from hpctl.engine.plan import plan_recoveries
from hpctl.engine.view import group_jobs_by_node
from hpctl.engine.world import World
from hpctl.engine.world_client import unpack_world
from hpctl.engine.world_offline import add_cluster_assessments
from hpctl.engine.world_wire import (
    RecoveryCycleDecisions,
    WorldAnswerSummary,
    WorldPart,
    build_engine_state_from_records,
    decode_record_frames,
    encode_frames,
    find_history_start,
)
from hpctl.faults.catalogue import build_fault_rules as catalogue_rules
from hpctl.faults.hma_marks import MARKS
from hpctl.faults.reachability import CHECKS
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.policy import ConcurrentRecoveryBudgets, OperatingMode, RecoveryPolicy
from tests.cli.worlds import DAEMON
from tests.engine.machine.daemon import Daemon
from tests.engine.machine.world import DEFECTS
from tests.engine.machine.world import World as Cluster

RULES = catalogue_rules()
CONFIG = Config(state_dir=Path("/nonexistent"), loop=RecoveryLoopSection(lease_s=1e-9))
SEEDS, STEPS = 24, 30
SPANS = (0.1, 1.0, 5.0, 12.0, 35.0, 65.0, 190.0, 700.0)


class Play:
    """One random story."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        mode = self.dice.choice(
            (OperatingMode.OWN, OperatingMode.OWN, OperatingMode.ASSIST, OperatingMode.OBSERVE)
        )
        budgets = ConcurrentRecoveryBudgets(
            open_min=self.dice.choice((1, 2)), partition_min=2, per_hour=4
        )
        self.policy = RecoveryPolicy(mode=mode, budgets=budgets)
        self.cluster = Cluster(8, automatic=self.dice.random() < 0.2, protected=1)
        for _ in range(self.dice.randint(1, 4)):
            self.cluster.slurm.submit(self.dice.randint(1, 3), 50_000.0)
        self.daemon = Daemon(self.cluster, self.policy, RULES)
        self.daemon.run()

    def step(self) -> None:
        """Something happens, and the daemon has its turns."""
        cluster, dice = self.cluster, self.dice
        node = dice.choice(cluster.names)
        match dice.randrange(9):
            case 0 | 1:
                cluster.breaks(node, dice.choice(DEFECTS))
            case 2:
                for name in dice.sample(cluster.names, 4):
                    cluster.breaks(name, DEFECTS[0])
            case 3:
                cluster.machines[node].agent_silent = dice.random() < 0.5
            case 4:
                cluster.machines[node].slurmd_dead = dice.random() < 0.5
            case 5:
                cluster.marks(node, dice.choice([*MARKS]))
            case 6:
                self.daemon.ask(*dice.choice((("pause",), ("unpause",), ("return", node))))
            case 7:
                cluster.away(dice.choice(("slurm", "cloud")), dice.choice((5.0, 60.0)))
            case 8:
                self.daemon.kill_switch.on = dice.random() < 0.3
        cluster.passes(dice.choice(SPANS))
        self.daemon.run()
        # A cycle in which nothing opens or moves decides on the state that it leaves behind.
        self.daemon.cycle()

    def offered(self) -> World:
        """The daemon's world after the encoding and back."""
        last = self.daemon.loop.last
        assert last is not None
        decided = RecoveryCycleDecisions(last.candidates, last.holds, last.flaws)
        about = WorldAnswerSummary(
            daemon=DAEMON,
            policy=last.policy,
            stopped=last.view.stopped,
            slurm_trouble=last.slurm_trouble,
            cloud_trouble=last.cloud_trouble,
        )
        found: dict[str, list[Any]] = {}
        for part in WorldPart:
            sent = [*encode_frames(part, last.view, decided, find_history_start(last.at))]
            listed = [(kind, len(body)) for kind, body in sent]
            body = b"".join(body for _, body in sent)
            found |= decode_record_frames(listed, memoryview(body))
        return unpack_world(about, build_engine_state_from_records(found), found, last.at)

    def computed(self) -> World:
        """What the offline reader makes of the facts of that cycle."""
        last = self.daemon.loop.last
        assert last is not None
        slurm, cloud = last.slurm_trouble, last.cloud_trouble
        bare = World(
            now=last.at,
            policy=self.policy,
            state=replay_events(self.daemon.journal.events()),
            health=self.daemon.book.copy_agent_health(),
            stopped=last.view.stopped,
            daemon=DAEMON,
        )
        return add_cluster_assessments(
            bare,
            CONFIG,
            (None if slurm else last.view.scheduler, slurm),
            (None if cloud else self.daemon.cloud.view, cloud),
        )


def remembered(offered: World, computed: World) -> set[NodeName]:
    """The nodes whose assessment rests on a sign that the daemon remembers."""
    both = (offered.health, computed.health)
    return {
        node
        for health in both
        for node, known in health.items()
        if any(finding.check in CHECKS for finding in known.findings)
    }


def compare(play: Play, seen: Counter[str]) -> None:
    """Compare both worlds of the last cycle; `seen` counts what there was to compare."""
    offered, computed = play.offered(), play.computed()
    assert offered.state == computed.state
    assert (offered.slurm, offered.slurm_error) == (computed.slurm, computed.slurm_error)
    assert offered.cloud == computed.cloud
    assert offered.joined.instances == computed.joined.instances
    assert (offered.stopped, offered.policy) == (computed.stopped, computed.policy)
    assert offered.health.keys() == computed.health.keys()
    if computed.slurm is None or computed.cloud is None:
        # The daemon goes by what it read before; a reader that looks once has nothing.
        seen["blind"] += 1
        return
    aside = remembered(offered, computed)
    for node in offered.health.keys() - aside:
        assert offered.health[node] == computed.health[node]
        assert offered.assessments[node] == computed.assessments[node]
        seen["unwell"] += bool(offered.assessments[node].findings)
    asked = {c.node.name: c for c in offered.candidates if not c.manual}
    would = {c.node.name: c for c in computed.candidates}
    for node in (asked.keys() | would.keys()) - aside:
        assert asked[node] == would[node]
        seen["candidates"] += 1
    seen["remembered"] += len(aside)
    if aside:  # each of them counts for the gates of all
        return
    here = group_jobs_by_node(list(computed.state.open_nodes), computed.slurm.jobs)
    planned = plan_recoveries(computed.view(), play.policy, RULES, here, computed.now, KINDS)
    blocks = {h.target: (h.gate, h.rule, h.why) for h in offered.holds}
    again = {h.target: (h.gate, h.rule, h.why) for h in planned.holds}
    for node in would:
        assert blocks[node] == again[node]
        seen["blocks"] += 1


def test_the_daemons_world_is_what_a_reader_would_compute() -> None:
    seen: Counter[str] = Counter()
    for seed in range(SEEDS):
        play = Play(seed)
        for _ in range(STEPS):
            play.step()
            compare(play, seen)
    print(seen)
    for what in ("blind", "unwell", "candidates", "remembered", "blocks"):
        assert seen[what] > SEEDS, what
