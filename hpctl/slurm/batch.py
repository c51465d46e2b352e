"""Orders for many nodes as few updates: by equal Reason, a hundred nodes in one hostlist."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from hpctl.core.hostlist import batches
from hpctl.core.model import NodeName, Outcome, OutcomeKind, SlurmNode

BATCH = 100
"""Nodes in one update: a refusal costs at most this many single repeats."""

Rule = Callable[[SlurmNode | None, str], Outcome | None]
Send = Callable[[Sequence[str], str], Outcome]


def update(
    wanted: Mapping[NodeName, str],
    seen: Mapping[NodeName, SlurmNode],
    rule: Rule,
    send: Send,
    *,
    with_reason: bool,
) -> dict[NodeName, Outcome]:
    """An Outcome for every wanted node: the rule's, or that of the update it went out in.

    `send(names, reason)` sends one update; `with_reason` says whether the text of a node is
    the Reason to send (a RESUME has none, so all its nodes go together).
    """
    answers: dict[NodeName, Outcome] = {}
    groups: dict[str, list[NodeName]] = {}
    for name, text in wanted.items():
        answer = rule(seen.get(name), text)
        if answer is not None:
            answers[name] = answer
        else:
            groups.setdefault(text if with_reason else "", []).append(name)
    for reason, names in groups.items():
        for part in batches(names, BATCH):
            answers |= _one_batch(part, reason, send)
    return {name: answers[name] for name in wanted}


def singly(
    wanted: Mapping[NodeName, str],
    update: Callable[[Mapping[NodeName, str]], Mapping[NodeName, Outcome]],
) -> dict[NodeName, Outcome]:
    """The same one by one, where nothing else may come between the look and the order."""
    return {n: o for name in wanted for n, o in update({name: wanted[name]}).items()}


def _one_batch(names: Iterable[str], reason: str, send: Send) -> dict[NodeName, Outcome]:
    """One update for all; where it is refused, one each, so that each has its own answer.

    slurmctld stops at the first bad name and may have done those before it: DRAIN, DOWN and
    RESUME can be said twice. What may have been done as a whole is not repeated.
    """
    targets = [NodeName(name) for name in names]
    sent = send(targets, reason)
    if sent.kind is not OutcomeKind.REJECTED or sent.transient or len(targets) == 1:
        return dict.fromkeys(targets, sent)
    return {name: send([name], reason) for name in targets}
