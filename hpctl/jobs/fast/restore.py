"""At a start: the newest whole step that the nodes still hold, gathered on each of them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl.jobs.checkpoints.search import Checkpoint, Search
from hpctl.jobs.fast.lead import holders
from hpctl.jobs.fast.ledger import SavedFile, SavedStep
from hpctl.jobs.fast.spec import Spec
from hpctl.jobs.fast.union import Peers

HELPERS_S = 10.0
"""How long a start waits for the helpers of all its nodes."""
ASSEMBLE_S = 3600.0
_OWN = re.compile(r"(^|/)(bf16_|fp16_)?zero_pp_rank_\d+_")
"""Files of DeepSpeed that, on as many nodes, only the rank reads that wrote them. In the other
formats any rank may read any file: a rank of DCP reads what the planner of its load says."""


class HeldStep(Struct, frozen=True):
    """A step of the ledger, and which nodes hold each of its files. `lost`: what nobody holds."""

    row: SavedStep
    held: dict[SavedFile, list[tuple[str, str]]]

    @property
    def copies(self) -> int:
        """How many nodes hold each file, the least of all."""
        return min((len({host for host, _ in where}) for where in self.held.values()), default=0)

    @property
    def lost(self) -> tuple[SavedFile, ...]:
        """Files of which no living node has a copy."""
        return tuple(file for file, where in self.held.items() if not where)


def held_steps(
    peers: Peers, hosts: Sequence[str], wait_s: float
) -> tuple[list[HeldStep], set[str]]:
    """The ledger's steps, newest first, and the hosts that answered."""
    deadline = time.monotonic() + wait_s
    found: dict[str, dict[str, Any]] = {}
    while True:
        found |= peers.each("inventory", [h for h in hosts if h not in found])
        if len(found) == len(hosts) or time.monotonic() >= deadline:
            break
        time.sleep(0.2)
    rows: dict[tuple[str, tuple[SavedFile, ...]], SavedStep] = {}
    for mine in found.values():
        for row in msgspec.convert(mine["rows"], list[SavedStep]):
            rows.setdefault((row.name, row.files), row)
    steps = sorted(rows.values(), key=lambda row: row.order, reverse=True)
    return [HeldStep(row, holders(row, found)) for row in steps], set(found)


def restore(
    spec: Spec,
    others: Search,
    say: Callable[[str], None],
    gone: Callable[[Sequence[str]], Sequence[str]] = lambda _: (),
    wait_s: float = HELPERS_S,
) -> Search:
    """The better of `others` (the shared directory and further tiers) and the nodes' own saves.

    Where the latter is newer it is gathered on every host, and its path is the same on each. What
    lies there and is newer than the answer is set aside. `gone`: which of the hosts whose helpers
    do not answer run no rank any more; another that is silent rules the saves out, for its ranks
    would not find them. Never raises for a helper that does not answer.
    """
    peers = Peers(spec, retry_s=0.0)
    try:
        steps, answered = held_steps(peers, spec.hosts, wait_s)
        silent = [h for h in spec.hosts if h not in answered]
        missing = [h for h in silent if h not in gone(silent)]
        if silent:
            say(f"no helper answers on {', '.join(silent)}")
        least = -1 if others.found is None or others.found.step is None else others.found.step
        for held in steps:
            row = held.row
            if row.step is None or row.step < least:
                break
            if held.lost:
                with_whom = ", ".join(sorted({file.origin for file in held.lost}))
                say(f"step {row.step} is lost with {with_whom}: no living node holds all of it")
            elif missing:
                say(f"step {row.step} cannot be gathered on {', '.join(missing)}")
            elif _gathered(peers, held, [h for h in spec.hosts if h in answered], say):
                path = Path(spec.saves.dir) / row.name
                return Search(Checkpoint(path, row.step, None, row.format, deep=False))
        if answered:
            peers.each("aside", answered, above=least)
        return others
    finally:
        peers.close()


def _gathered(
    peers: Peers, held: HeldStep, hosts: Sequence[str], say: Callable[[str], None]
) -> bool:
    """Whether a step was put on every host; tried twice, for a helper that has ended starts again
    within moments, and an older step costs more."""
    if _assemble(peers, held, hosts, say):
        return True
    steps, answered = held_steps(peers, hosts, HELPERS_S)
    anew = next((each for each in steps if each.row == held.row and not each.lost), None)
    return anew is not None and answered == set(hosts) and _assemble(peers, anew, hosts, say)


def _assemble(
    peers: Peers, held: HeldStep, hosts: Sequence[str], say: Callable[[str], None]
) -> bool:
    row = held.row
    given = msgspec.to_builtins(row)
    same = row.format == "deepspeed" and len(hosts) == len(row.hosts)
    begun = []
    for at, host in enumerate(hosts):
        # Of a name that several nodes wrote, each node gets its predecessor's.
        slot = row.hosts[at] if at < len(row.hosts) else ""
        chosen: dict[str, SavedFile] = {}
        for file in row.files:
            if same and file.origin != slot and _OWN.search(file.path):
                continue
            if file.path not in chosen or file.origin == slot:
                chosen[file.path] = file
        plan = [(msgspec.to_builtins(f), held.held[f]) for f in chosen.values()]
        try:
            peers.ask(host, "assemble", row=given, plan=plan)
            begun.append(host)
        except OSError as error:
            say(f"step {row.step} is not gathered on {host}: {error}")
    errors = peers.finish(begun, ASSEMBLE_S)
    for why in errors[:3]:
        say(f"step {row.step} is not gathered: {why}")
    if errors or len(begun) < len(hosts):
        return False
    if same:
        given = msgspec.to_builtins(_moved(row, hosts))
    if len(peers.each("adopt", begun, row=given)) < len(begun):
        say(f"step {row.step} is not in its place on every node")
        return False
    copies = {f"{h}'s copy of {o}" for where in held.held.values() for h, o in where[:1] if o}
    own = {h for where in held.held.values() for h, o in where[:1] if not o}
    say(f"step {row.step} comes from {', '.join(sorted(own) + sorted(copies))}")
    return True


def _moved(row: SavedStep, hosts: Sequence[str]) -> SavedStep:
    """The step once each host has its predecessor's share, so that partners copy what has moved."""
    if row.hosts == tuple(hosts):
        return row
    heirs = dict(zip(row.hosts, hosts, strict=True))
    files = tuple(replace(file, origin=heirs[file.origin]) for file in row.files)
    return replace(row, hosts=tuple(hosts), files=files, seen_s=time.time())
