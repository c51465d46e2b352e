"""What a fault is in hpctl's tables: one row a code, and one row for the check that finds it.

The rule id of a fault is its check's stem and its code: `gpu.ecc` and `contained` make
`gpu-ecc-contained`. The letters of the treatments:

- I   count it only; the node stays in service
- W   as I, and show the node as Suspect
- J   the job's fault, or fatal to one job only: restart the job, the node stays
- H   nothing automatic; a human reads it, and the node is Suspect
- R1  close the node to new work, reset the GPU once its jobs have ended
- R2  stop the jobs, start them elsewhere, reset the GPU
- A   close the node to new work, reboot it once its jobs have ended, then replace it
- B   stop the jobs, start them elsewhere, reboot, then replace
- X   stop the jobs, start them elsewhere, replace the instance
"""

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct, field

from hpctl.core.model import Clears, RuleId

WEEK = 7 * 86400.0
_NUMBERS = re.compile(r"\d[\d\s-]*")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_STEMS = {"kernel.xid": "xid", "kernel.sxid": "sxid"}


class FaultRow(Struct, frozen=True, forbid_unknown_fields=True):
    """What one code of a check means, and what is done about it.

    `code` may list several numbers and ranges (`39-41 70-72`); empty stands for every code of the
    check that has no row of its own. `nvidia` is what NVIDIA's Xid catalogue
    (docs.nvidia.com/deploy/xid-errors) or Fabric Manager guide says, empty where the fault is not
    NVIDIA's. `differs` says where hpctl departs from that, or why the treatment is what it is.
    `watch` makes a node with this finding Suspect for display, never Faulty; W and H imply it.
    `ladder` replaces the treatment's own. `settle_s` and `window_s` are FaultClass's fields, in
    seconds. `clears` is set where a kernel line's code ends otherwise than by a boot. `own` marks
    what only a node's own hardware can produce: a bus, memory or a disk that is lost.
    """

    check: str
    code: str
    treatment: str
    meaning: str
    nvidia: str = ""
    differs: str = ""
    settle_s: float = 0.0
    window_s: float = WEEK
    watch: bool = False
    ladder: str = ""
    clears: Clears = Clears.BOOT
    own: bool = False

    @property
    def rules(self) -> tuple[RuleId, ...]:
        """The ids of its rules: one, or one for each number."""
        if not self.code:
            return (RuleId(stem(self.check)),)
        return tuple(rule_id(self.check, code) for code in self.codes)

    @property
    def codes(self) -> tuple[str, ...]:
        """Its codes one by one."""
        return tuple(expand(self.code)) if _NUMBERS.fullmatch(self.code) else (self.code,)

    @property
    def suspect(self) -> bool:
        """Whether a node with it is shown as Suspect."""
        return self.watch or self.treatment in ("W", "H")

    @property
    def acts(self) -> bool:
        """Whether anything is done to the node, unless a site overrides it."""
        return self.treatment not in ("I", "W", "J", "H")


class Limit(Struct, frozen=True, forbid_unknown_fields=True):
    """One number that a check compares with, its unit, and where it comes from."""

    value: float
    unit: str
    why: str


class CheckSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """One check of the agent: what it looks at, how often, and when it is believed.

    It runs each `every_s` seconds; 0 is for kernel lines, which are judged when they are read. A
    thing is reported when `seen[0]` of the last `seen[1]` runs saw it, and ends by `clears`; with
    GONE, when it has not been so for `gone_s`. What looks wrong in the first `grace_s` seconds
    after boot and after an upgrade of the agent is UNKNOWN. `shed`: 0 is never shed, the highest
    goes first when the agent is over its budget.
    """

    name: str
    what: str
    source: str
    every_s: float = 0.0
    seen: tuple[int, int] = (1, 1)
    clears: Clears = Clears.GONE
    gone_s: float = 60.0
    grace_s: float = 0.0
    shed: int = 0
    limits: Mapping[str, Limit] = field(default_factory=dict)


def stem(check: str) -> str:
    """What the rule ids of a check begin with."""
    return _STEMS.get(check) or check.replace(".", "-")


def rule_id(check: str, code: str) -> RuleId:
    """The id of the rule for a code of a check."""
    return RuleId(f"{stem(check)}-{code}")


def expand(numbers: str) -> Iterator[str]:
    """The numbers in `11 25 39-41`."""
    for low, high in _RANGE.findall(numbers):
        yield from map(str, range(int(low), int(high or low) + 1))
