"""The two error rates, by library: what `make test` and `make proof` print at their end."""

import json
from collections.abc import Iterable

import pytest

from tests.checkpoints.proof.killing import Count

TITLE = "checkpoints of killed writers"
PROPERTY = "killed-writers"
"""What a test's report carries its Count under, as JSON."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table after the run, whichever process the tests ran in."""
    reports = [r for outcome in ("passed", "failed") for r in terminalreporter.getreports(outcome)]
    counts = [
        Count(**json.loads(str(value)))
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if counts:
        terminalreporter.section(TITLE)
        for line in lines(counts):
            terminalreporter.write_line(line)


def lines(counts: Iterable[Count]) -> list[str]:
    """A row for each library, and the sum. Both sums are out of the checkpoints so called."""
    rows = sorted(counts, key=lambda count: count.library)
    wide = max(len(row.library) for row in rows)
    found = [
        f"{'library':{wide}}  kills  in a save  called whole  falsely  offered  falsely"
        "  passed over  falsely"
    ]
    for name, of in [*((row.library, [row]) for row in rows), ("all", rows)]:
        kills, within = sum(r.kills for r in of), sum(r.within for r in of)
        whole, wrong = sum(r.whole for r in of), sum(len(r.false_whole) for r in of)
        passed, lost = sum(r.passed for r in of), sum(len(r.false_passed) for r in of)
        offered, half = sum(r.offered for r in of), sum(len(r.false_offered) for r in of)
        found.append(
            f"{name:{wide}}  {kills:5}  {within:9}  {whole:12}  {wrong:7}  {offered:7}  {half:7}"
            f"  {passed:11}  {lost:7}"
        )
    return [
        *found,
        # .ci/run looks for this line.
        f"false 'whole': {wrong} of {whole}; 'passed over': {lost} of {passed};"
        f" seed {', '.join(sorted({str(r.seed) for r in rows}))}",
        *(f"  {r.library}: false whole: {what}" for r in rows for what in r.false_whole),
        *(f"  {r.library}: falsely offered: {what}" for r in rows for what in r.false_offered),
        *(f"  {r.library}: falsely passed over: {what}" for r in rows for what in r.false_passed),
    ]
