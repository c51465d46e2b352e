"""The nouns of hpctl: frozen values, no behaviour beyond reading themselves.

Every decision is made from these and printed from these. Times are aware datetimes in UTC.
UNKNOWN is a third thing everywhere: neither healthy nor faulty, never falsy-tested.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from msgspec import Struct, field

from hpctl.toolkit import bounds
from hpctl.toolkit.compat import StrEnum
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName


class DeviceVerdict(StrEnum):
    """What one check says of one device."""

    OK = "ok"
    NOTE = "note"
    """Seen and counted, and nothing against the node: a program's own fault, an unknown line."""
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"


class ClearCondition(StrEnum):
    """What ends a finding."""

    BOOT = "boot"
    """A restart of the instance: until then what was seen counts."""
    GONE = "gone"
    """The agent no longer reports it: it has not been so for the check's own time."""
    OPERATOR = "operator"
    """`hpctl undrain`, or another instance: a restart does not fix it."""


TEST: Final = "acceptance."
"""How the checks begin whose findings are the result of an acceptance test: `device` is the test's
id, `code` the remedy that it asks for, `evidence` its figures as JSON."""


TEST_SUMMARY: Final = "acceptance.run"
"""The finding that closes a test: all others of its id are there. `evidence` is the node's Card
(hpctl.nodes.acceptance.cards) as JSON, empty where no GPU is known."""


class Finding(Struct, frozen=True):
    """One check's result on one device of one node, folded over repeats.

    `check` is a dotted name (`kernel.xid`), `code` the check's own number or word (`79`),
    `detail` what the check decoded from the text (for Xid 154 the recovery-action phrase),
    `evidence` the raw line. `count` is how often it was seen between `first` and `last`.
    `job` is the Slurm job id that it hit, where the node can tell. Times out of bounds become the
    nearest bound, and what a terminal obeys becomes U+FFFD, wherever a finding comes from: a
    journal may already hold one of year 1.
    """

    check: str
    verdict: DeviceVerdict
    first: datetime
    last: datetime
    device: str = ""
    code: str = ""
    detail: str = ""
    evidence: str = ""
    count: int = 1
    clears: ClearCondition = ClearCondition.BOOT
    job: str = ""

    def __post_init__(self) -> None:
        bounds.clamp_time_fields(self, "first", "last")
        bounds.make_text_fields_printable(self, "device", "code", "detail", "evidence")


class AgentReport(Struct, frozen=True):
    """What an agent sends: facts about one generation, never a recommendation.

    `seq` grows by one a report within one agent run; `agent_start` tells the runs apart.
    `gauges` are numbers by name (`gpu.throttle_share`), at most 64, that no agent can judge
    alone: the head node compares them with the node's peers. A missing name is no zero.
    """

    node: NodeName
    instance: InstanceId
    boot: BootId
    seq: int
    sent_at: datetime
    agent_start: datetime
    findings: tuple[Finding, ...] = ()
    gauges: Mapping[str, float] = field(default_factory=dict)

    @property
    def generation(self) -> NodeGeneration:
        """Return the generation that the report speaks of."""
        return NodeGeneration(self.node, self.instance, self.boot)


class NodeHealth(Struct, frozen=True):
    """All that the head node knows from a node's agent: its latest generation, folded."""

    generation: NodeGeneration
    last_heard: datetime
    findings: tuple[Finding, ...] = ()
