"""Slurm on paper, as an operator's command sees it: the real rules over values."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from msgspec.structs import replace

from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode

BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


class PaperSlurm:
    """What an order needs of `CliScheduler`. What a look does to the world is in `at_look`."""

    def __init__(self, names: Iterable[str]) -> None:
        self.nodes = {
            name: SlurmNode(name, "IDLE", partitions=("dev",), slurmd_start=BEGUN) for name in names
        }
        self.jobs: dict[int, SlurmJob] = {}
        self.at_look: list[Callable[[], object]] = []
        self.blind = 0
        self.denied = False
        self.downed: list[str] = []
        self.updates: list[tuple[str, tuple[str, ...]]] = []

    def view(self) -> SchedulerView:
        if self.blind:
            self.blind -= 1
            raise ServiceUnavailable("slurmctld does not answer")
        if self.at_look:
            self.at_look.pop(0)()
        return SchedulerView(BEGUN, dict(self.nodes), dict(self.jobs))

    def run(self, job: int, *names: str, requeue: bool = True) -> None:
        self.jobs[job] = SlurmJob(
            job, "RUNNING", BEGUN, name="bert", user="ana", requeue=requeue,
            nodes=tuple(map(NodeName, names)),
        )  # fmt: skip

    def end(self, job: int) -> None:
        self.jobs.pop(job)

    def registers(self, name: str) -> None:
        """A new slurmd of this name: slurmctld keeps DRAIN and the Reason."""
        node = self.nodes[name]
        later = (node.slurmd_start or BEGUN) + timedelta(minutes=20)
        flags = node.flags - {"NOT_RESPONDING"}
        self.nodes[node.name] = replace(node, slurmd_start=later, flags=flags)

    def change(self, name: str, state: str, reason: str = "", *flags: str) -> None:
        node = self.nodes[name]
        self.nodes[node.name] = replace(node, state=state, reason=reason, flags=frozenset(flags))

    def update(self, nodes, state, rule):
        if state == "DRAIN" and self.denied:
            return dict.fromkeys(nodes, Outcome.rejected("ESLURM_ACCESS_DENIED", "denied"))
        if state == "DOWN":
            self.downed += nodes
        self.updates.append((state, tuple(nodes)))

        def do(node: SlurmNode, reason: str) -> SlurmNode:
            if state == "DRAIN":
                return replace(node, flags=node.flags | {"DRAIN"}, reason=reason)
            if state == "DOWN":
                return replace(node, state="DOWN")
            return replace(node, state="IDLE", flags=node.flags - {"DRAIN"}, reason="")

        answers = {}
        for name, reason in nodes.items():
            node = self.nodes.get(name)
            answer = rule(node, reason)
            if answer is None:
                assert node is not None
                self.nodes[name] = do(node, reason)
                answer = Outcome.accepted()
            answers[name] = answer
        return answers
