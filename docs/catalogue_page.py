"""docs/catalogue.md from the fault table: a heading a check, a line a row, and nothing twice."""

from __future__ import annotations

from itertools import groupby

from hpctl.core.catalogue import SHIPPED
from hpctl.core.faults.row import DAY, WEEK, FaultRow, stem
from hpctl.core.faults.table import SECTIONS

HEAD = """# The fault catalogue

What each kernel message or node-level fact means, and what hpctl does about it. A rule's id is the
stem in bold and the code: `xid-79`, `host-disk-full`. A site overrides urgency, ladder, settling
time and window of a rule by its id, and adds rules for its plugins, reports and alerts
([plugins](plugins.md)). The data is in `hpctl/core/faults/`.

| letter | urgency | ladder |
|---|---|---|
| I | `none`: the node stays in service | none: counted |
| W | `none` | none: shown as Suspect |
| J | `none` | restart the job |
| H | `none` | ask a human; shown as Suspect |
| A | `after_jobs`: no new work, treated when its jobs have ended | reboot, replace |
| R1 | `after_jobs` | reset the GPU, reboot, replace |
| R2 | `now`: its jobs are stopped and started elsewhere | reset the GPU, reboot, replace |
| B | `now` | reboot, replace |
| X | `now` | replace |

Another ladder stands beside the letter. The same rule on the same instance within 7 days, or `1 d`,
climbs one rung. `3 s`: companion lines are waited for. Of two faults the more urgent decides, then
the stronger first remedy, then the order here.
"""
_SAYS_NOTHING = ("", "no bucket given", "do what it says", "not listed")


def page() -> str:
    """The page: the sections of the table in order of precedence."""
    lines = [HEAD]
    for title, rows in SECTIONS:
        lines += [f"## {title}", ""]
        for check, those in groupby(rows, lambda row: row.check):
            lines += [f"**{stem(check)}**", ""]
            for head, alike in groupby(those, _treatment):
                lines += [f"- {head}", *map(_line, alike)]
            lines.append("")
    return "\n".join(lines)


def _treatment(row: FaultRow) -> str:
    """Its letter, the ladder where that is another, and its times."""
    ladder = ", ".join(SHIPPED[row.rules[0]].ladder).replace("_", " ") if row.ladder else ""
    settles = f"{row.settle_s:g} s" if row.settle_s else ""
    window = f"{row.window_s / DAY:g} d" if row.window_s != WEEK else ""
    return ", ".join(filter(None, (row.treatment, ladder, settles, window)))


def _line(row: FaultRow) -> str:
    code = f"`{row.code.replace(' ', ', ')}` " if row.code else ""
    why = _why(row)
    return f"  - {code}{row.meaning}" + (f" ({why})" if why else "")


def _why(row: FaultRow) -> str:
    """The reason, where something is done to the node, and what NVIDIA says instead."""
    if not row.acts:
        return ""
    if row.differs and row.nvidia not in _SAYS_NOTHING:
        return f"NVIDIA: {row.nvidia}; {row.differs}"
    return row.differs
