"""What an order for nodes works with."""

from collections.abc import Callable, Mapping
from typing import Protocol

from msgspec import Struct

from hpctl.slurm.cli import Rule
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.ports import AwsClientFactory, Clock
from hpctl.vocabulary.slurm_facts import SchedulerView


class SlurmNodeUpdater(Protocol):
    """The part of `hpctl.slurm.cli.CliScheduler` that an order needs."""

    def view(self) -> SchedulerView:
        """Return all nodes and jobs. Raises Unavailable."""

    def update(
        self, wanted: Mapping[NodeName, str], state: str, rule: Rule
    ) -> Mapping[NodeName, Outcome]:
        """Set a state on each node, with its text as the Reason, where the rule decides so."""


class NodeOrderPorts(Struct, frozen=True):
    """The account, Slurm where it is reachable, the clock, and how to wait."""

    aws: AwsClientFactory
    slurm: SlurmNodeUpdater | None
    clock: Clock
    sleep: Callable[[float], None]
