"""Kernel lines that no pattern was written for: how many `hpctl triage` takes for what they are.

`python -m tests.corpus.unseen [NAME...]` prints the figures of a set, and each line that was taken
for something else. The sets lie in `held_out/`, labeled by what the driver's source means before
hpctl ever read them; where they come from, and how they are labeled, their first lines say. Each
line is judged alone, as the first of a log.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path

from msgspec import Struct
from rich.console import Console

from hpctl.cli.triage import _Reader

HERE = Path(__file__).parent / "held_out"
SETS = ("first", "second", "third", "fourth", "fifth", "sixth")
LABELS = frozenset({"none", "seen", "act"})


class Case(Struct, frozen=True):
    """A line and what it must come to: `label`, and the remedies that are right for `act`."""

    origin: str
    label: str
    remedies: frozenset[str]
    text: str


class Said(Struct, frozen=True):
    """What a judge made of a line: whether it told of it, and the remedy where it would act."""

    told: bool
    remedy: str = ""


class Figures(Struct, frozen=True):
    """Of a set: shares from 0 to 1, and the cases that came to something else."""

    lines: int
    benign_acted: int
    benign_told: float
    acts: int
    acts_right: float
    act_recall: float
    seen: float
    wrong: tuple[tuple[Case, Said], ...]


def load(name: str) -> list[Case]:
    """The cases of a set."""
    cases, origin = [], ""
    for line in (HERE / f"{name}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            origin = line.removeprefix("## ")
        elif line and not line.startswith("# "):
            wanted, _, text = line.partition(" | ")
            label, _, remedies = wanted.partition(" ")
            assert label in LABELS, line
            assert bool(remedies) == (label == "act"), line
            cases.append(Case(origin, label, frozenset(remedies.split("|")) - {""}, text))
    return cases


def figures(cases: Iterable[Case], judge: Callable[[str], Said]) -> Figures:
    """How right a judge of single lines is."""
    said = [(case, judge(case.text)) for case in cases]
    acted = [(case, one) for case, one in said if one.remedy]
    faults = [(case, one) for case, one in said if case.label == "act"]
    telling = [one for case, one in said if case.label != "none"]
    return Figures(
        lines=len(said),
        benign_told=_share(one.told for case, one in said if case.label == "none"),
        benign_acted=sum(case.label == "none" for case, _ in acted),
        acts=len(acted),
        acts_right=_share(one.remedy in case.remedies for case, one in acted),
        act_recall=_share(bool(one.remedy) for _, one in faults),
        seen=_share(one.told for one in telling),
        wrong=tuple((case, one) for case, one in said if not _right(case, one)),
    )


def hpctl(text: str) -> Said:
    """`hpctl triage` of a log of one line."""
    views = list(_Reader().views(BytesIO(text.encode())))
    remedy = next((view.remedy for view in views if view.condition == "faulty"), "")
    return Said(bool(views), remedy)


def _right(case: Case, said: Said) -> bool:
    if case.label == "act":
        return said.remedy in case.remedies
    return not said.remedy and (said.told or case.label == "none")


def _share(held: Iterable[bool]) -> float:
    values = list(held)
    return sum(values) / len(values) if values else 1.0


def _shown(name: str) -> Iterator[str]:
    found = figures(load(name), hpctl)
    yield (
        f"{name}: {found.lines} lines, benign acted on {found.benign_acted} and told of"
        f" {found.benign_told:.1%}, acts right"
        f" {found.acts_right:.1%} of {found.acts}, act recall {found.act_recall:.1%},"
        f" seen {found.seen:.1%}"
    )
    for case, said in found.wrong:
        wanted = " ".join((case.label, "|".join(sorted(case.remedies))))
        got = said.remedy or ("told" if said.told else "nothing")
        yield f"  wanted {wanted}, got {got}: {case.text}"


if __name__ == "__main__":
    out = Console(highlight=False, soft_wrap=True)
    for one in sys.argv[1:] or SETS:
        for shown in _shown(one):
            out.print(shown, markup=False)
