"""`hpctl explain` of what the daemon does to the capacity: autoscaling and spares."""

from __future__ import annotations

from hpctl.cli.explain import ExplainView
from hpctl.cli.gather import World
from hpctl.core.change import Change
from hpctl.core.model import RecoveryId
from hpctl.core.tell_capacity import awaited, headline, lines


def changes_of(w: World, target: str) -> list[Change]:
    """The changes of a group, of a node, or for a recovery; oldest first."""
    found = [
        change
        for change in w.state.changes.values()
        if target in (change.opened.group, change.opened.node, change.opened.cause)
        or target in change.opened.nodes
    ]
    return sorted(found, key=lambda change: (change.opened.at, change.id))


def change_of(w: World, target: str) -> ExplainView | None:
    """The story of the change of this id, or of a group's last one; None where there is none."""
    change = w.state.changes.get(RecoveryId(target))
    if change is None:
        own = [c for c in changes_of(w, target) if target == c.opened.group]
        if not own:
            return None
        change = ([c for c in own if not c.ended] or own)[-1]
    about = change.opened
    others = [c.id for c in changes_of(w, about.node or about.group) if c.id != change.id]
    return ExplainView(
        as_of=w.now,
        target=change.id,
        kind="change",
        headline=headline(change),
        story=lines(change),
        next=awaited(change, w.policy),
        related=(*((about.cause,) if about.cause else ()), *others[-5:]),
    )
