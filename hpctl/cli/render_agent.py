"""How `hpctl agent check` is shown to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hpctl.cli.render import columns, word, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.cli.agent_check import AgentCheckView

QUIET = ("ok", "absent")


def check(out: Console, view: AgentCheckView) -> None:
    """One line a check, and one for each thing that a check found."""
    rows = columns("CHECK", "STATE", "DEVICE", wrapped("WHAT"))
    for row in view.checks:
        if row.state in QUIET or not row.findings:
            rows.add_row(row.check, word(row.state), "", Text(row.why))
        for finding in row.findings:
            said = ": ".join(filter(None, (finding.code, finding.detail, finding.evidence)))
            times = f" ({finding.count} times)" if finding.count > 1 else ""
            what = Text(said + times)
            rows.add_row(finding.check, word(finding.verdict), Text(finding.device), what)
    out.print(rows)
    if view.lost:
        out.print(f"{view.lost} records of {view.kmsg} were lost before they were read")
