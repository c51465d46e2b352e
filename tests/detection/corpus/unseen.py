"""Kernel lines without a pattern: how many `hpctl agent triage` takes for what they are.

The sets lie in `held_out/`, labeled by what the driver's source means before
hpctl ever read them; where they come from, and how they are labeled, their first lines say. Each
line is judged alone, as the first of a log; `+ | TEXT` is a further record of the case above it.
"""

from collections.abc import Callable, Iterable
from io import BytesIO
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpctl.detection.triage import KernelLogTriageReader

HERE = Path(__file__).parent / "held_out"
SETS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
)
LABELS = frozenset({"none", "seen", "act", "differs"})


class Case(Struct, frozen=True):
    """A line and what it must come to: `label`, and the remedies that are right for `act`.

    `differs`: the source and hpctl part on purpose over whether to act, and it must be reported.
    `text` may be several records, with newlines between them.
    """

    origin: str
    label: str
    remedies: frozenset[str]
    text: str


class Judgment(Struct, frozen=True):
    """What a judge made of a line: whether it reported it, and the remedy where it would act."""

    reported: bool
    remedy: str = ""


class Figures(Struct, frozen=True):
    """Of a set: shares from 0 to 1, and the cases that came to something else."""

    lines: int
    benign_acted: int
    benign_reported: float
    acts: int
    acts_right: float
    act_recall: float
    seen: float
    wrong: tuple[tuple[Case, Judgment], ...]


def load(name: str) -> list[Case]:
    """The cases of a set."""
    cases: list[Case] = []
    origin = ""
    for line in (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            origin = line.removeprefix("## ")
        elif line.startswith("+ | "):
            more = line.removeprefix("+ | ")
            cases[-1] = replace(cases[-1], text=f"{cases[-1].text}\n{more}")
        elif line and not line.startswith("# "):
            wanted, _, text = line.partition(" | ")
            label, _, remedies = wanted.partition(" ")
            assert label in LABELS, line
            assert bool(remedies) == (label == "act"), line
            cases.append(Case(origin, label, frozenset(remedies.split("|")) - {""}, text))
    return cases


def figures(cases: Iterable[Case], judge: Callable[[str], Judgment]) -> Figures:
    """How right a judge of single lines is."""
    output = [(case, judge(case.text)) for case in cases]
    acted = [(case, one) for case, one in output if one.remedy and case.label != "differs"]
    faults = [(case, one) for case, one in output if case.label == "act"]
    telling = [one for case, one in output if case.label != "none"]
    return Figures(
        lines=len(output),
        benign_reported=_share(one.reported for case, one in output if case.label == "none"),
        benign_acted=sum(case.label == "none" for case, _ in acted),
        acts=len(acted),
        acts_right=_share(one.remedy in case.remedies for case, one in acted),
        act_recall=_share(bool(one.remedy) for _, one in faults),
        seen=_share(one.reported for one in telling),
        wrong=tuple((case, one) for case, one in output if not _right(case, one)),
    )


def hpctl(text: str) -> Judgment:
    """`hpctl agent triage` of a log of one line."""
    views = list(KernelLogTriageReader().views(BytesIO(text.encode())))
    remedy = next((view.remedy for view in views if view.condition == "faulty"), "")
    return Judgment(bool(views), remedy)


def _right(case: Case, output: Judgment) -> bool:
    if case.label == "act":
        return output.remedy in case.remedies
    if case.label == "differs":
        return output.reported
    return not output.remedy and (output.reported or case.label == "none")


def _share(held: Iterable[bool]) -> float:
    values = list(held)
    return sum(values) / len(values) if values else 1.0
