"""How `hpctl iam check` is shown to people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from hpctl.cli.render import columns, wrapped

if TYPE_CHECKING:
    from rich.console import Console

    from hpctl.cli.iam import IamCheckView


def check(out: Console, view: IamCheckView) -> None:
    """One line, and a table of what is denied."""
    if view.error:
        out.print(Text(f"cannot tell: {view.error}"))
        return
    if not view.denied and not view.unsure:
        out.print(Text(f"{view.role} allows what {view.who} needs"))
    if view.denied:
        out.print(Text(f"{view.role} does not allow all that {view.who} needs:"))
        rows = columns("ACTION", wrapped("ON"))
        for denied in view.denied:
            rows.add_row(denied.action, Text(denied.resource))
        out.print(rows)
    if view.unsure:
        out.print(Text(f"{view.role} has conditions that only a real request meets:"))
        rows = columns("ACTION", wrapped("DEPENDS ON"))
        for unsure in view.unsure:
            rows.add_row(unsure.action, Text(unsure.keys))
        out.print(rows)
