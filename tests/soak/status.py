"""What `hpctl status` says during a soak, once a second, and whether it named each fault in time.

`python -m tests.soak.status CONFIG` is who asks: what the command does, over and over, in a process
of its own. Whether a fault is over is never asked of hpctl, but of Slurm, of the nodes' boot ids
and of what the jobs write.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from itertools import pairwise

from msgspec import Struct, field

from hpctl.sandbox import clocks
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from tests.daemon.chaos import Chaos
from tests.sandbox.test_training import ROOT

EVERY_S = 1.0
ACT_S = 10.0
_FOR_AN_OPERATOR = re.compile(r"([\w-]+)(?: waits for a person|:.*InsufficientInstanceCapacity)")
NAMED_S = 60.0
"""Within so long `status` names a fault that lasts."""
NOTICED_S = 10.0
"""An answer that names the subject earlier than this may name it for what happened before: `status`
may be silent about it once more, until hpctl has noticed the new fault."""


class Answer(Struct, frozen=True):
    """One answer of `status`: asked at `began`, there at `at`, by the wall clock."""

    began: float
    at: float
    code: int
    lines: tuple[str, ...]

    @property
    def cannot_tell(self) -> bool:
        """Slurm or the daemon is away, and it says so."""
        away = any(line.startswith("Slurm cannot be read") for line in self.lines)
        return self.code == 3 or (self.code == 1 and away)

    def names(self, what: str) -> bool:
        """Whether a line of it names something, and its exit code tells that all is not well."""
        pattern = re.compile(rf"(?<![\w-]){re.escape(what)}(?![\w-])", re.IGNORECASE)
        return self.code in (1, 3) and any(pattern.search(line) for line in self.lines)


Serving = frozenset[str] | None
"""The nodes that take jobs and answer, of Slurm's own word; None where slurmctld does not answer.
"""
Over = Callable[[Serving], bool | None]


def serving(live: Chaos) -> Serving:
    """Look at Slurm."""
    try:
        nodes = live.scheduler.view().nodes
    except ServiceUnavailable:
        return None
    return frozenset(str(n) for n, node in nodes.items() if node.in_service and node.responding)


class Struck(Struct):
    """A fault that was done: a line about it, and what ends it (at `until`, if it must end).

    `subject` is what `status` names until it is `over`, which asks the world and not hpctl; None is
    for nobody can tell now. Without `over` it is over when it was ended. "" for a fault of what
    hpctl needs, in which the nodes that wait are named for faults of their own.
    """

    line: str
    until: float = 0.0
    end: Callable[[], object] | None = None
    subject: str = ""
    over: Over | None = None
    kind: str = ""
    of_head: bool = False
    """It takes something from the daemon."""
    named_s: float = 0.0
    """Within how many seconds `status` names it, where that is its own."""
    latent: bool = False
    """Nobody can see it at first: named before that, its subject was named for something else."""
    began: float = 0.0
    looks: list[float] = field(default_factory=list)
    """When the world said that it is not over yet."""
    ended: bool = False

    @property
    def last_open(self) -> float:
        """When it was last known to be open; 0 where it never was."""
        return self.looks[-1] if self.looks else 0.0


class Row(Struct):
    """What became of the faults of one kind."""

    kind: str
    n: int = 0
    named: int = 0
    longest_s: float = 0.0
    sooner: int = 0
    asked: int = 0
    silent: int = 0

    def text(self) -> str:
        """It in a line."""
        return (
            f"{self.kind}: {self.n}; {self.named} named, the last after {self.longest_s:.1f} s;"
            f" {self.sooner} over before; {self.asked - self.silent} of {self.asked} answers"
            " named it while it was open"
        )


class Verdict(Struct):
    """What became of each kind, and each miss in a line."""

    rows: list[Row]
    misses: list[str] = field(default_factory=list)

    def text(self) -> list[str]:
        """It for a person."""
        return [*(row.text() for row in self.rows if row.n), *self.misses]


def _clock_of(live: Chaos) -> dict[str, str]:
    """The environment of a command on the head node, where that has a clock of its own."""
    spec = live.sandbox.spec
    if not spec.clock_library:
        return {}
    return clocks.make_clock_environment(spec.clock_library, spec.layout.get_clock_offset_path(""))


class StatusWatch:
    """Asks `status` all the while, and keeps what it answered."""

    def __init__(self, live: Chaos, named_s: float = NAMED_S) -> None:
        """`named_s`: within how many seconds `status` must name a fault."""
        self._live, self._named_s = live, named_s
        self.answers: list[Answer] = []
        self._watched: list[Struck] = []
        self._looked = self._acted = 0.0
        arguments = [sys.executable, "-m", "tests.soak.status", str(live.sandbox.config_path)]
        self._asker = subprocess.Popen(
            arguments,
            env={**live.sandbox.env, **_clock_of(live), "PYTHONPATH": ROOT},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, name="status", daemon=True)

    def __enter__(self) -> StatusWatch:
        self._reader.start()
        return self

    def __exit__(self, *_) -> None:
        self._asker.terminate()
        self._asker.wait(10)
        self._reader.join(10)
        if self._asker.stdout is not None:
            self._asker.stdout.close()

    def watch(self, fault: Struck) -> None:
        """From here on this fault is to be named until it is over."""
        self._watched.append(fault)

    def look(self) -> None:
        """Look what is over, at most once a second."""
        if time.time() - self._looked < EVERY_S:
            return
        self._looked, now = time.time(), serving(self._live)
        for fault in self._watched:
            if fault.ended:
                continue
            over = fault.over(now) if fault.over else None
            fault.ended = bool(over)
            if over is False:
                fault.looks.append(self._looked)

    def for_an_operator(self) -> list[str]:
        """The nodes of which `status` tells anew that their replacement found no capacity, or that
        they wait for a person."""
        last = self.answers[-1] if self.answers else None
        if last is None or last.began < self._acted + ACT_S:
            return []
        nodes = [found[1] for line in last.lines if (found := _FOR_AN_OPERATOR.match(line))]
        self._acted = time.time() if nodes else self._acted
        return nodes

    def open(self) -> list[str]:
        """What is not over yet."""
        return [f.line for f in self._watched if not f.ended]

    def verdict(self, kinds: Iterable[str]) -> Verdict:
        """What became of all of them."""
        rows = {kind: Row(kind) for kind in kinds}
        found = Verdict(list(rows.values()))
        for fault in self._watched:
            row = rows[fault.kind]
            row.n += 1
            if fault.subject:
                found.misses += _judge(fault, row, self.answers, fault.named_s or self._named_s)
            handed_over = any(
                line.startswith(f"{fault.subject} waits for a person")
                for answer in self.answers[-1:]
                for line in answer.lines
            )
            if not fault.ended and not handed_over:
                found.misses.append(f"{fault.line}: never over")
        return found

    def _read(self) -> None:
        assert self._asker.stdout is not None
        for line in self._asker.stdout:
            # By our own clock: that of the command may be off.
            answer, at = json.loads(line), time.time()
            began = at - answer["took"]
            self.answers.append(Answer(began, at, answer["code"], tuple(answer["lines"])))


def _between(answers: list[Answer], first: float, last: float) -> list[Answer]:
    return [a for a in answers if a.began >= first and a.at <= last]


def _find_sure(silent: list[Answer], asked: list[Answer], fault: Struck) -> list[Answer]:
    """Return the silent answers that the next one confirms, with a look at the world between them.

    The world and `status` are read one after the other: in between a node may have served for a
    moment, and been closed again for something else.
    """
    found = []
    for answer, following in pairwise(asked):
        seen = any(answer.at <= look <= following.began for look in fault.looks)
        if answer in silent and following in silent and seen:
            found.append(answer)
    return found


def _judge(fault: Struck, row: Row, answers: list[Answer], named_s: float = NAMED_S) -> list[str]:
    """Named within `named_s`, and from then on until it was over; else what it answered instead."""
    asked = _between(answers, fault.began, fault.last_open)
    silent = [a for a in asked if not a.names(fault.subject) and not a.cannot_tell]
    unnoticed = [a for a in silent if fault.latent or a.at <= fault.began + NOTICED_S]
    since = unnoticed[-1].at if unnoticed else fault.began
    named = next((a for a in answers if a.began >= since and a.names(fault.subject)), None)
    if named is None or (fault.ended and named.began > fault.last_open + EVERY_S):
        open_s = max(0.0, fault.last_open - fault.began)
        row.sooner += 1
        return [f"{fault.line}: never named in {open_s:.0f} s"] if open_s > named_s else []
    row.named += 1
    blind = [a for a in _between(answers, fault.began, named.began) if a.cannot_tell]
    took = named.at - fault.began - sum(max(EVERY_S, a.at - a.began) for a in blind)
    row.longest_s = max(row.longest_s, took)
    while_open = _between(answers, named.began, fault.last_open)
    silent = [a for a in _find_sure(silent, while_open, fault) if a.began > named.began]
    row.asked += len(while_open)
    row.silent += len(silent)
    misses = [f"{fault.line}: named after {took:.0f} s"] if took > named_s else []
    if silent:
        misses.append(
            f"{fault.line}: open until {fault.last_open - fault.began:.0f} s, and at"
            f" {silent[0].at - fault.began:.0f} s status answered {silent[0]}"
        )
    return misses


def main(path: str) -> None:
    """Ask what `hpctl status` asks, once a second, and print each answer as a line of JSON."""
    from hpctl.engine.config_loading import load_config
    from hpctl.engine.status_view import choose_cluster_status_exit_code, read_cluster_status

    while True:
        began = time.monotonic()
        try:
            view = read_cluster_status(load_config(path))
            code, lines = (
                int(choose_cluster_status_exit_code(view)),
                [*view.problems, *view.unknowns],
            )
        except HpctlError as error:
            code, lines = 3, [f"{error} {error.hint}"]
        took = time.monotonic() - began
        print(json.dumps({"took": took, "code": code, "lines": lines}), flush=True)
        time.sleep(max(0.2, EVERY_S - took))


if __name__ == "__main__":
    main(sys.argv[1])
