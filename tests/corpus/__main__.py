"""`make corpus`: plays the fault corpus and prints how right the verdicts are.

Exit code 1 where a benign case causes an action or a fault does not get its remedy.
"""

import sys

from rich.console import Console
from rich.table import Table

from tests.corpus.case import load
from tests.corpus.peers import lines
from tests.corpus.score import NONE, Score

COLUMNS = ("reset_gpu", "reboot", "replace", "ask_human", NONE)


def main() -> int:
    """Play, print, judge."""
    score = Score.of(load())
    out = Console(highlight=False)
    out.print(_confusion(score))
    _summary(out, score)
    out.print(_delays(score))
    out.print(_peers(score))
    for result in score.wrong:
        out.print(f"[red]wrong[/red] {result.case.name}: expected {_expected(result.case)}", end="")
        out.print(f", got {result.told}", markup=False)
    return 1 if score.wrong else 0


def _confusion(score: Score) -> Table:
    table = Table("fault class", "cases", *COLUMNS, "wrong", box=None, pad_edge=False)
    wrong = [result.case.kind for result in score.wrong]
    for name, count, verdicts in score.confusion():
        cells = [str(verdicts[column] or "") for column in COLUMNS]
        table.add_row(name, str(count), *cells, str(wrong.count(name) or ""))
    return table


def _delays(score: Score) -> Table:
    title = "seconds from the fault to a verdict, on the case's own clock"
    table = Table("fault class", "cases", "median", "longest", box=None, pad_edge=False)
    table.title, table.title_justify = title, "left"
    for name, delays in score.delays():
        middle = delays[len(delays) // 2]
        table.add_row(name, str(len(delays)), f"{middle:.0f}", f"{delays[-1]:.0f}")
    return table


def _peers(score: Score) -> Table:
    table = Table("detection", "published by others", "hpctl, this run", "gate", box=None)
    for line in lines(score):
        style = "" if line.met else "red"
        table.add_row(line.what, line.published, line.ours, line.gate, style=style)
    return table


def _summary(out: Console, score: Score) -> None:
    cases, benign = len(score.results), len(score.benign)
    out.print(f"\n{cases} cases, {benign} of them benign ({100 * benign / cases:.0f} %)")
    out.print(f"precision {score.precision:.3f}, recall {score.recall:.3f}", end="")
    out.print(f", right remedy {score.right_remedy:.3f}", end="")
    out.print(f", actions on benign cases {len(score.false_actions)}")


def _expected(case: object) -> str:
    expect = getattr(case, "expect", "")
    return expect if isinstance(expect, str) else f"{expect.urgency}/{expect.remedy} {expect.rule}"


if __name__ == "__main__":
    sys.exit(main())
