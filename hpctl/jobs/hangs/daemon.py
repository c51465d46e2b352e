"""Running jobs that make no progress, and the stacks of their ranks, which show whom they wait for.

What the agents say of the jobs is looked at every few seconds, and kept in memory only: after a
restart a run is watched from the beginning, and its pauses are learned again. The journal has that
it hung.

Stacks are read by the agents of the job's nodes when the daemon asks, and what they say is kept
with the recovery (docs/adr/0073). The daemon itself may not read them: Slurm lets only a job's
owner add a step to it, and the daemon is SlurmUser without a capability. A request is sent with the
answers to the agents' reports, and its answer comes back as findings of the check `job.stacks`,
proved as all of theirs.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec import Struct, field

from hpctl.engine.journal.state import EngineState
from hpctl.engine.kinds import DueRecoveryStep
from hpctl.engine.node_health import NodeHealthStore
from hpctl.jobs.hangs.decide import (
    JobHangHistory,
    find_stalled_run,
    merge_node_activity_samples,
    update_job_hang_history,
)
from hpctl.jobs.hangs.stack_groups import (
    NodeStacks,
    diagnose_hang_from_rank_stacks,
    parse_node_stacks,
)
from hpctl.jobs.plan import is_run_known_to_hang
from hpctl.vocabulary.hang import JobHang, StalledJobRun
from hpctl.vocabulary.identity import JobId, NodeGeneration, NodeName
from hpctl.vocabulary.isolation import (
    ItemProcessingFailure,
    call_and_capture_failure,
    process_items_capturing_failures,
)
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import JobHangPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob
from hpctl.wire.stack_request import CHECK, RankStackTraceRequest

log = logging.getLogger(__name__)

LOOK_SHARE = 12.0
"""Looks in `floor_s`: one each 10 s by default, as often as agents count."""
MOST_SAMPLES = 16
"""Of one node between two looks; later ones are left out."""


class HangDetector:
    """Gauges in, hangs out. `hear` runs on the intake's threads, `look` on the loop's."""

    def __init__(self) -> None:
        self.flaws: tuple[ItemProcessingFailure, ...] = ()
        self._lock = threading.Lock()
        self._heard: dict[NodeName, list[Mapping[str, float]]] = {}
        self._tracks: dict[JobId, JobHangHistory] = {}
        self._looked: datetime | None = None
        self._still: Mapping[JobId, StalledJobRun] = {}

    def hear(self, generation: NodeGeneration, gauges: Mapping[str, float]) -> None:
        """Take in what an agent sent."""
        with self._lock:
            heard = self._heard.setdefault(generation.node, [])
            if len(heard) < MOST_SAMPLES:
                heard.append(gauges)

    def look(
        self,
        slurm: SchedulerView,
        now: datetime,
        policy: JobHangPolicy,
        state: EngineState | None = None,
    ) -> Mapping[JobId, JobHang]:
        """Return the jobs that hang. Judge again where the last time is long enough ago."""
        passed_s = (now - self._looked).total_seconds() if self._looked else None
        if passed_s is None or not 0 <= passed_s < policy.floor_s / LOOK_SHARE:
            self._looked = now
            self._update_running_job_hang_histories(slurm, now, policy, state or EngineState())
        return {job: track.hang for job, track in self._tracks.items() if track.hang}

    @property
    def last_worked(self) -> Mapping[JobId, datetime]:
        """Return when each job was last seen at work."""
        return {job: track.worked for job, track in self._tracks.items() if track.worked}

    @property
    def still(self) -> Mapping[JobId, StalledJobRun]:
        """Return the jobs of which nothing works, as of the last look."""
        return self._still

    def _update_running_job_hang_histories(
        self, slurm: SchedulerView, now: datetime, policy: JobHangPolicy, state: EngineState
    ) -> None:
        with self._lock:
            heard, self._heard = self._heard, {}
        answers = {node: merge_node_activity_samples(samples) for node, samples in heard.items()}

        def update_job_history(job: SlurmJob) -> tuple[JobId, JobHangHistory]:
            # A node says what it likes, but only of the jobs that Slurm has put there.
            ids = job.components or (job.id,)
            mine = {}
            for node in job.nodes:
                if node not in answers:
                    continue
                for activity in map(answers[node].get, ids):
                    if activity is not None:
                        mine[node] = activity
            known, found = self._tracks.get(job.id), is_run_known_to_hang(job, state)
            return job.id, update_job_hang_history(job, mine, known, policy, now, found)

        running = [job for job in slurm.jobs.values() if job.running]
        tracks, flaws = process_items_capturing_failures(
            "hangs", running, lambda job: job.id, update_job_history
        )
        self._tracks, self.flaws = dict(tracks), tuple(flaws)
        shown = (find_stalled_run(track, policy, job) for job, track in tracks)
        self._still = {one.job: one for one in shown if one is not None}


ANSWER_S, LOOK_S = 45.0, 0.25
"""How long the daemon waits for the agents, which learn of it with their next heartbeat; and how
often their answers are looked for. In seconds."""
KEPT, VERDICT = 32, 600
"""Dumps that are kept, the newest; characters of a verdict in the journal."""


class SlurmStateSource(Protocol):
    """The last reading of Slurm."""

    @property
    def slurm(self) -> SchedulerView:
        """Return what Slurm reported last. Any thread."""


class StackRequestReceiver(Protocol):
    """A receiver of requests for stacks that agents are to read."""

    def request_stack_traces(self, stacks: Mapping[NodeName, RankStackTraceRequest]) -> None:
        """Have the agents of these nodes asked, and no others. Any thread."""


class _PendingStackRequest(Struct):
    """Stacks of one job that are awaited from its nodes until `ends`, by time.monotonic()."""

    due: DueRecoveryStep
    ask: RankStackTraceRequest
    nodes: tuple[NodeName, ...]
    ends: float
    answers: dict[NodeName, NodeStacks] = field(default_factory=dict)


class StackCollector:
    """The collector of stacks: asks, waits in a separate thread, judges, keeps. `begin` and `done`
    are for the loop.

    One thread waits for all jobs, and it runs from the start: the loop starts none later, when
    memory may be short (`hpctl.toolkit.threads`).
    """

    def __init__(
        self,
        health: NodeHealthStore,
        slurm: SlurmStateSource,
        folder: Path,
        poke: Callable[[], None],
        agents: StackRequestReceiver,
    ) -> None:
        """`folder`: where the dumps are kept, one file for each recovery. `poke` wakes the loop."""
        self._health, self._slurm, self._folder, self._poke = health, slurm, folder, poke
        self._agents = agents
        self._done: queue.SimpleQueue[tuple[DueRecoveryStep, Outcome]] = queue.SimpleQueue()
        self._begun: queue.SimpleQueue[_PendingStackRequest] = queue.SimpleQueue()
        self._asks: dict[NodeName, RankStackTraceRequest] = {}
        threading.Thread(
            target=self._poll_pending_stack_requests, name="stacks", daemon=True
        ).start()

    def begin(self, due: DueRecoveryStep) -> None:
        """Ask the nodes of the job. Its outcome comes with `done`, within ANSWER_S."""
        job = self._slurm.slurm.jobs.get(due.attempt.job) if due.attempt else None
        if job is None or not job.running or job.uid is None:
            self._done.put((due, Outcome.rejected("not_running", "the job does not run")))
            self._poke()
            return
        ask = RankStackTraceRequest(f"{due.recovery}.{due.do.attempt}", job.id, job.uid)
        # One ask of a node at a time: a job that shares it is asked after, or not at all.
        nodes = tuple(node for node in job.nodes if self._asks.setdefault(node, ask) is ask)
        self._agents.request_stack_traces(dict(self._asks))
        self._begun.put(_PendingStackRequest(due, ask, nodes, time.monotonic() + ANSWER_S))

    def done(self) -> list[tuple[DueRecoveryStep, Outcome]]:
        """Return what has come of earlier ones since the last time."""
        return [self._done.get() for _ in range(self._done.qsize())]

    def _poll_pending_stack_requests(self) -> None:
        awaited: list[_PendingStackRequest] = []
        while True:
            if not awaited:
                awaited.append(self._begun.get())
            while not self._begun.empty():
                awaited.append(self._begun.get())
            time.sleep(LOOK_S)
            awaited = [
                inquiry for inquiry in awaited if not self._finish_answered_stack_request(inquiry)
            ]

    def _finish_answered_stack_request(self, inquiry: _PendingStackRequest) -> bool:
        """Look for answers; return whether the inquiry has ended."""
        found = call_and_capture_failure(
            "stacks", inquiry.ask.job, self._collect_job_stack_answers, inquiry
        )
        if found is None:
            return False
        if isinstance(found, ItemProcessingFailure):
            log.error("flaw=%s", found)
            found = Outcome.ambiguous("internal_error", found.error)
        for node in inquiry.nodes:
            self._asks.pop(node, None)
        self._agents.request_stack_traces(dict(self._asks))
        self._done.put((inquiry.due, found))
        self._poke()
        return True

    def _collect_job_stack_answers(self, inquiry: _PendingStackRequest) -> Outcome | None:
        """Return what has come of an inquiry; None while answers are awaited."""
        answers = inquiry.answers
        for node in inquiry.nodes:
            if (
                node not in answers
                and (one := self._find_node_stack_answer(node, inquiry.ask)) is not None
            ):
                answers[node] = one
        if len(answers) < len(inquiry.nodes) and time.monotonic() < inquiry.ends:
            return None
        verdict = diagnose_hang_from_rank_stacks(answers.values(), inquiry.nodes)
        dump = {"job": inquiry.ask.job, "verdict": verdict, "nodes": [*answers.values()]}
        self._store_stack_dump(inquiry.due, dump)
        if not verdict.groups:
            return Outcome.rejected("no_stacks", verdict.text[:VERDICT])
        return Outcome.accepted(verdict.text[:VERDICT])

    def _find_node_stack_answer(
        self, node: NodeName, ask: RankStackTraceRequest
    ) -> NodeStacks | None:
        """Return what a node's agent has answered: never of another node, whatever it says."""
        heard = self._health.list_agent_findings(node)
        parts = [one for one in heard if (one.check, one.code) == (CHECK, ask.id)]
        found = parse_node_stacks(chain.from_iterable(part.evidence.splitlines() for part in parts))
        return next((one for one in found if one.node == node), None)

    def _store_stack_dump(self, due: DueRecoveryStep, dump: dict[str, Any]) -> None:
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            (self._folder / f"{due.recovery}.json").write_bytes(msgspec.json.encode(dump))
            by_age = sorted(self._folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
            for old in by_age[:-KEPT]:
                old.unlink()
        except OSError as error:
            log.warning("the stacks of job %s are not kept: %s", dump["job"], error)
