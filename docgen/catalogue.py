"""docs/catalogue.md from the fault table: a table a section, a line a row."""

import re
from collections.abc import Iterable
from itertools import groupby

from hpctl.faults.catalogue import SHIPPED
from hpctl.faults.sightings import FaultSighting
from hpctl.faults.table import SECTIONS, FaultRow, make_rule_prefix
from hpctl.vocabulary.assessment import Urgency

WEEK_S, SETTLE_S = 7 * 86400.0, 3.0
SAME = "\u2033"
FROM = {"reset, reboot, replace": "reset", "reboot, replace": "reboot"}
"""The usual ladders, by their first rung."""
ABOUT = {"hma": "HyperPod's health agent "}
"""What every meaning of a check begins with, and the heading says."""
UNUSED = "unused by today's drivers"
"""Means the codes that no other row has."""

HEAD = """# The fault catalogue

What each kernel message or node-level fact means, and what hpctl does about it. A rule's id is the
name in bold and the code: `xid-79`, `host-disk-full`. A site changes a rule by its id in
[hpctl.yaml](configuration.md), and may add rules ([plugins](plugins.md)). Of two
faults the more urgent decides, then the stronger first remedy, then the order here.
`hpctl/faults/` says where a rule differs from NVIDIA's advice.

**Reset**: the agent stops DCGM, exporters and persistence, ends what holds GPUs and resets them,
with NVLink peers where the driver asks. MIG, a job on any GPU, or NVSwitch without the Fabric
Manager it needs refuse it. What is not reset is rebooted; `hpctl explain` says why.

**Remedy**: where the ladder begins: *reset* the GPU, then reboot, then replace; another ladder is
written out. The same rule on the same instance within 7 days, or the time in the row, climbs one
rung. \u2033: as above. \\*: hpctl waits 3 s, or as in the row, for a message that says more. Jobs
are stopped and started elsewhere; †: the node is treated when its jobs have ended. *watch*:
it is shown as Suspect. Empty: counted only.

**Seen**: a public issue, log or test that shows it, or a recording of a GPU of ours. Empty: none
was found, and the row is known from manuals and sources only.
"""


def page() -> str:
    """Return the page: the sections of the table in order of precedence."""
    lines = [HEAD]
    for title, rows in SECTIONS:
        if all(row.reason for row in rows):
            lines += _describe_reasons(title, rows)
            continue
        lines += [f"## {title}", "", "| code | meaning | remedy | seen |", "|---|---|---|---|"]
        for check, those in groupby(rows, lambda row: row.check):
            lines.append(f"| **{make_rule_prefix(check)}** | | | |")
            above = ""
            for row in those:
                remedy = _describe_remedy(row)
                lines.append(_make_line(row, SAME if remedy and remedy == above else remedy))
                above = remedy
        lines.append("")
    return "\n".join(lines)


REASONS = """\
A program of Slurm's drains a node, or sets it DOWN, with a Reason that begins with one of these
texts, as root or SlurmUser. Under another account the same words are a person's, and the node is
left to them. A node that has another fault as well is treated for that one: hpctl's Reason replaces
Slurm's, which the evidence in `hpctl explain` keeps. With none, the node gets the remedy here. For
*ask human* nothing is done to it, and `hpctl status` lists it with what to do. The texts are known
from Slurm's sources: `hpctl/faults/outside.md` names the file that writes each.
"""


def _describe_reasons(title: str, rows: Iterable[FaultRow]) -> list[str]:
    """Return the section of what Slurm closes nodes for, with its texts and what a person does."""
    head = "| rule | Reason begins with | by | meaning | remedy | what to do |"
    lines = [f"## {title}", "", REASONS, head, "|---|---|---|---|---|---|"]
    for row in rows:
        texts = ", ".join(f"`{text}`" for text in row.reason)
        cells = (f"`{row.rules[0]}`", texts, row.by, row.meaning, _describe_remedy(row), row.advice)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _make_line(row: FaultRow, remedy: str) -> str:
    code = f"`{row.code.replace(' ', ', ')}`" if row.code else ""
    if row.meaning == UNUSED:
        code = f"others up to `{re.split('[ -]', row.code)[-1]}`"
    meaning = row.meaning.removeprefix(ABOUT.get(row.check, ""))
    seen = ", ".join(_link_sighting(one) for one in row.sightings)
    return f"| {code} | {meaning} | {remedy} | {seen} |"


def _link_sighting(sighting: FaultSighting) -> str:
    """Return a sighting as a link: a thread by its number, a file by its repository and name."""
    if sighting.is_recorded_by_hpctl:
        return sighting.text
    place, _, codes = sighting.text.partition(" ")
    repository, is_file, path = place.partition(":")
    text = f"{repository}: {path.rpartition('/')[2]}" if is_file else place
    return f"[{text}]({sighting.url}){' ' + codes if codes else ''}"


def _describe_remedy(row: FaultRow) -> str:
    shipped = SHIPPED[row.rules[0]]
    ladder = (
        ""
        if row.treatment in "IW"
        else ", ".join(shipped.ladder).replace("reset_gpu", "reset").replace("_", " ")
    )
    if ladder in FROM:
        ladder = FROM[ladder]
    if shipped.urgency is Urgency.AFTER_JOBS:
        ladder += " †"
    if row.watch and ladder and not row.acts:
        ladder += ", watch"
    if ladder and shipped.settle_s:
        ladder += r" \*" if shipped.settle_s == SETTLE_S else f" \\* {shipped.settle_s:g} s"
    if ladder and shipped.escalate_window_s != WEEK_S:
        ladder += f", within {shipped.escalate_window_s / 86400:g} d"
    return ladder or ("watch" if row.suspect else "")
