"""How many nodes jobs need that may share them: first fit, in the order of their age. Pure.

Slurm places jobs by rules of its own (topology, sockets, weights); this only counts. A node or a
job of which nothing is known is taken whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpctl.core.tres import Demand, Tres

_Counts = tuple[int, ...]
_MEMORY, _GRES = 1, 2
"""Before it stand CPUs and memory, of which zero means that Slurm does not count them."""


@dataclass(slots=True)
class _Node:
    has: _Counts
    rest: _Counts
    free: bool = True

    def takes(self, need: _Counts | None) -> bool:
        if need is None or not any(self.has):
            return self.free
        return all(
            # More memory than there is means all of it: what a job gets that asks for none.
            (min(n, h) if i < _GRES else n) <= r
            for i, (n, h, r) in enumerate(zip(need, self.has, self.rest, strict=True))
        )

    def take(self, need: _Counts | None) -> None:
        self.free = False
        kept = need if need is not None and any(self.has) else self.rest
        self.rest = tuple(max(r - n, 0) for r, n in zip(self.rest, kept, strict=True))


class Pool:
    """Free nodes of a group, and as many more like `like` as are asked for."""

    def __init__(self, like: Tres, free: Sequence[Tres]) -> None:
        """`like`: what a new node will have."""
        self._names = tuple(sorted({name for node in (like, *free) for name, _ in node.gres}))
        self._like = self._counts(like)
        self._nodes = [_Node(has, has) for has in map(self._counts, free)]
        self._from: dict[_Counts | None, int] = {}

    @property
    def used(self) -> int:
        """How many nodes have a job by now."""
        return sum(not node.free for node in self._nodes)

    def fits(self, job: Demand) -> bool:
        """Whether nodes like these could serve it at all, were there enough of them."""
        if not any(self._like):
            return True
        here = dict(zip(self._names, self._like[_GRES:], strict=True))
        lacks = any(count and not here.get(name) for name, count in job.total.gres)
        too_much = any(count > here.get(name, 0) for name, count in job.each.gres)
        return not (lacks or too_much or 0 < self._like[0] < job.each.cpus)

    def place(self, job: Demand, most: int, size: int | None) -> int | None:
        """Give it nodes; how many new ones that takes. None, and nothing done, for over `most`.

        A job that needs more nodes than the group's `size`, whatever ends, has it made large
        enough, at least; not where that is None.
        """
        count, need = self._share(job)
        found = self._find(count, need)
        short = count - len(found)
        if size is not None and short > most and count > size:
            short = count - size
        if short > most:
            return None
        new = [_Node(self._like, self._like) for _ in range(short)]
        self._nodes += new
        for node in (*found, *new):
            node.take(need)
        return short

    def _counts(self, tres: Tres) -> _Counts:
        gres = dict(tres.gres)
        return (tres.cpus, tres.memory, *(gres.get(name, 0) for name in self._names))

    def _share(self, job: Demand) -> tuple[int, _Counts | None]:
        """On how many nodes it will be, and what it takes of each; None: all of it."""
        each, total = self._counts(job.each), self._counts(job.total)
        parts = (
            -(-t // h)
            for i, (t, h) in enumerate(zip(total, self._like, strict=True))
            # Memory is asked for by node or CPU, never together: it makes no job larger.
            if h > 0 and i != _MEMORY
        )
        count = max(job.nodes, 1, *parts)
        if job.whole or not any((*each, *total)):
            return count, None
        return count, tuple(max(e, -(-t // count)) for e, t in zip(each, total, strict=True))

    def _find(self, count: int, need: _Counts | None) -> list[_Node]:
        """Up to `count` nodes with room. Nodes only fill up: what had none needs no other look."""
        found: list[_Node] = []
        at = first = self._from.get(need, 0)
        while at < len(self._nodes) and len(found) < count:
            if self._nodes[at].takes(need):
                found.append(self._nodes[at])
            elif not found:
                first = at + 1
            at += 1
        self._from[need] = first
        return found
