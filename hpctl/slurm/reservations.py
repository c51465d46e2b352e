"""Reservations of Slurm's: reading them, and having one hold exactly some nodes.

Text in every release: its first fields are the same from 22.05 to 26.05. What 22.05.8 does was
seen there: an update replaces the whole list of nodes, or refuses it whole where one of the new
ones has a job ("Requested nodes are busy") or another reservation; `Nodes=` empty is accepted and
changes nothing, so that no nodes means to delete; a change makes slurmctld look at its queue.
The nodes of a reservation bear the flag RESERVED only at slurmctld's next look, seconds later.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hpctl.core.hostlist import fold
from hpctl.core.model import NodeName, Outcome, OutcomeKind
from hpctl.errors import Unavailable
from hpctl.slurm.errors import outcome
from hpctl.slurm.read import Reader
from hpctl.slurm.records import Hostlists

_HEAD = re.compile(r"^ReservationName=(?P<name>\S+) .*? Nodes=(?P<nodes>\S*) ", re.MULTILINE)

NOBODY = "root"
"""Whose jobs may use it: a reservation needs somebody, and root runs none."""

_GONE = "ESLURM_RESERVATION_INVALID"


def parse(text: str) -> dict[str, tuple[NodeName, ...]]:
    """The nodes of each reservation of `scontrol show reservation -o`."""
    hosts = Hostlists()
    return {found["name"]: hosts(found["nodes"]) for found in _HEAD.finditer(text)}


def read(reader: Reader) -> Mapping[str, tuple[NodeName, ...]]:
    """All reservations. Raises Unavailable."""
    return parse(reader.text("show", "reservation", "-o"))


def reserve(reader: Reader, name: str, nodes: Sequence[NodeName]) -> Outcome:
    """See ports.Scheduler.reserve."""
    try:
        held = read(reader).get(name)
    except Unavailable as error:
        return Outcome.rejected("unavailable", str(error), transient=True)
    if held is not None and set(held) == set(nodes):
        return Outcome.accepted("it holds them already")
    if not nodes:
        if held is None:
            return Outcome.accepted("there is none")
        sent = outcome(reader.runner.run("scontrol", "delete", f"ReservationName={name}"))
        return Outcome.accepted("there is none") if sent.code == _GONE else sent
    wanted = f"Nodes={fold(nodes)}"
    if held is not None:
        sent = outcome(reader.runner.run("scontrol", "update", f"ReservationName={name}", wanted))
    else:
        words = [f"ReservationName={name}", "StartTime=now", "Duration=UNLIMITED"]
        words += [f"Users={NOBODY}", wanted]
        sent = outcome(reader.runner.run("scontrol", "create", "reservation", *words))
    if sent.kind is OutcomeKind.REJECTED and sent.code == _GONE:
        return Outcome.rejected(sent.code, sent.detail, transient=True)
    return sent
