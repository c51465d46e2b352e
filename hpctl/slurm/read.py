"""Reading Slurm through its commands: retried, bounded, and in one shape for every release."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime

import tenacity

from hpctl.core.hostlist import batches, fold
from hpctl.core.model import JobId, NodeName, SchedulerView, SlurmJob, SlurmNode
from hpctl.ports import Unavailable
from hpctl.slurm import parse, parse_json
from hpctl.slurm.records import JobRecord
from hpctl.slurm.run import End, Ran, Runner
from hpctl.slurm.sizes import UNASKED, Dealt, dealt

JSON_SINCE = (24, 11)
TRIES = 3
RETRY_WITHIN = 5.0
"""Seconds after which a read is not tried again: scontrol has then retried for itself."""
LOOK = 200
"""Nodes in one `show node`: an argument list stays short, and a look stays cheap."""


POLITE_EVERY, POLITE_S = 100, 0.0005
"""After so many nodes a reader lets go of the interpreter for a moment. Ten thousand nodes take a
few tenths of a second to parse, and a thread that never waits leaves the intake's hardly any time:
agents' heartbeats would wait for all of it. Costs a twentieth of a second there, nothing on small
clusters."""


@dataclass(frozen=True)
class Reader:
    """Slurm's answers as values. Every method raises Unavailable, and nothing else."""

    runner: Runner
    now: Callable[[], datetime]
    _memo: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    _dealt: list[Dealt] = field(default_factory=list)

    def version(self) -> tuple[int, int, int]:
        """The release of the commands, asked once."""
        if "version" not in self._memo:
            found = parse.version(self._read("--version").text)
            if found is None:
                raise Unavailable("scontrol --version names no release", "is this Slurm?")
            self._memo["version"] = found
        return self._memo["version"]

    def dealt(self) -> Dealt:
        """What slurmctld deals out of a node, asked until it was answered once: it is fixed while
        slurmctld runs. Unanswered: memory counts, of which nothing is lost but a shared node."""
        if not self._dealt:
            try:
                self._dealt.append(dealt(self.config()))
            except Unavailable:
                return UNASKED
        return self._dealt[0]

    def config(self) -> dict[str, str]:
        """slurmctld's running configuration."""
        return parse.config(self._read("show", "config").text)

    def text(self, *args: str) -> str:
        """What scontrol prints for these words."""
        return self._read(*args).text

    def view(self) -> SchedulerView:
        """All nodes and jobs. `as_of` is before the first question, never after."""
        self.version()
        as_of = self.now()
        with ThreadPoolExecutor(2) as pool:
            nodes = pool.submit(self._all_nodes)
            jobs = pool.submit(self._all_jobs)
            return SchedulerView(as_of, nodes.result(), jobs.result())

    def nodes(self, names: Sequence[str]) -> dict[NodeName, SlurmNode]:
        """Those of these nodes that slurmctld knows."""
        found: dict[NodeName, SlurmNode] = {}
        for batch in batches(names, LOOK):
            ran = self._read("show", "node", fold(batch), *self._format(), known=_not_found)
            found |= {node.name: node for node in self._parse_nodes(ran)}
        return {name: found[name] for name in map(NodeName, names) if name in found}

    def job(self, job: JobId) -> JobRecord | None:
        """One job, None where slurmctld says that it does not know the id."""
        if self._json():
            ran = self._read("show", "job", str(job), *self._format(), known=_no_job)
            with contextlib.suppress(Unavailable):
                records = self._parse_jobs(ran)
                found = next((record for record in records if record.job.id == job), None)
                return self._expedited(found) if found else None
        # An empty JSON list may also mean that nobody answered: text has words for each.
        ran = self._read("show", "job", str(job), "-o", known=_no_job)
        first = parse.one_job(ran.text)
        if first is not None and first.job.id == job:
            return first
        return next((record for record in parse.jobs(ran.text) if record.job.id == job), None)

    def _expedited(self, record: JobRecord) -> JobRecord:
        """A held job with EXPEDITED_REQUEUE among its flags, where it has that."""
        if "REQUEUE_HOLD" not in record.job.flags:
            return record
        ran = self._read("show", "job", record.command_id, "-o", known=_no_job)
        if not parse.expedited(ran.text):
            return record
        flags = record.job.flags | {"EXPEDITED_REQUEUE"}
        return replace(record, job=replace(record.job, flags=flags))

    def _all_nodes(self) -> dict[NodeName, SlurmNode]:
        ran = self._read("show", "node", *self._format())
        return {node.name: node for node in self._parse_nodes(ran)}

    def _all_jobs(self) -> dict[JobId, SlurmJob]:
        ran = self._read("show", "job", *self._format())
        if self._json():
            return {r.job.id: r.job for r in self._parse_jobs(ran)}
        found, doubtful = parse.job_list(ran.text)
        for job in doubtful:
            record = self.job(job)
            if record is not None:
                found[job] = record.job
        return found

    def _json(self) -> bool:
        return self.version()[:2] >= JSON_SINCE

    def _format(self) -> tuple[str, ...]:
        return (f"--json={parse_json.PARSER}",) if self._json() else ("-o",)

    def _parse_nodes(self, ran: Ran) -> list[SlurmNode]:
        by = self.dealt()
        if not self._json():
            return list(_politely(parse.nodes(ran.text, by)))
        if not ran.ok:
            return []  # none of them is known
        with _shaped(ran):
            return list(_politely(parse_json.nodes(ran.out, by)))

    def _parse_jobs(self, ran: Ran) -> list[JobRecord]:
        with _shaped(ran):
            return list(parse_json.jobs(ran.out))

    def _read(self, *args: str, known: Callable[[Ran], bool] | None = None) -> Ran:
        """Run scontrol until it answers. `known` tells an answer that has exit status 1."""

        def answered(ran: Ran) -> bool:
            return ran.ok or (known is not None and ran.end is End.EXITED and known(ran))

        tries = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(TRIES) | tenacity.stop_after_delay(RETRY_WITHIN),
            wait=tenacity.wait_random(0.05, 0.4),
            retry=tenacity.retry_if_result(lambda ran: not answered(ran)),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        ran = tries(self.runner.run, "scontrol", *args)
        if ran is None or not answered(ran):
            said = ran.said if ran else "no answer"
            raise Unavailable(
                f"scontrol {' '.join(args)}: {said}",
                "look at `scontrol ping` and slurmctld's log; is SLURM_CONF the right file?",
            )
        return ran


def _not_found(ran: Ran) -> bool:
    return "not found" in ran.text + ran.err


def _no_job(ran: Ran) -> bool:
    return "Invalid job id" in ran.text + ran.err


@contextlib.contextmanager
def _shaped(ran: Ran) -> Iterator[None]:
    try:
        yield
    except parse_json.ParseError as error:
        raise Unavailable(
            f"{' '.join(ran.command)} answered in an unknown shape: {error}",
            f"does this Slurm have the data parser {parse_json.PARSER}?",
        ) from error


def _politely(nodes: Iterable[SlurmNode]) -> Iterator[SlurmNode]:
    """The same, with pauses for the other threads."""
    for number, node in enumerate(nodes, 1):
        yield node
        if number % POLITE_EVERY == 0:
            time.sleep(POLITE_S)
