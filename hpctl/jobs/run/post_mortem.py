"""Judge a run by what it left behind: dumps, output, exit codes, and the findings of its nodes.

This is for runs that have ended, whose log and dumps may be of any user. `RunEndEvidence` is what
such a run left. `diagnose_job_run_end` reads it and takes the steps that a verdict takes
everywhere: `diagnose_step_end` for the log and the exit codes, `diagnose_run_failure`
(`hpctl.jobs.run_failure`) for the other evidence, and `build_run_failure_verdict`
(`hpctl.jobs.verdict`) for the component.

The end of a script of `hpctl sbatch` (`log_cause`) and the corpus of recorded failures read what a
run left. `hpctl run` takes the same steps with what it learns while a step runs, and the daemon
takes the last two with what was reported to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.faults.assess import SETTLED, assess_health
from hpctl.faults.catalogue import build_fault_rules
from hpctl.jobs.crash import JobGpuAllocation, classify_crash
from hpctl.jobs.decide import PastJobFailure
from hpctl.jobs.hangs.flight_files import diagnose_hang_from_dumps_in_subprocess
from hpctl.jobs.hangs.flight_recorder import FlightRecorderHangVerdict
from hpctl.jobs.hangs.ras_judge import JobRankResolver
from hpctl.jobs.hangs.ras_report import RasReport, parse_ras_report
from hpctl.jobs.hangs.stack_groups import StackHangVerdict
from hpctl.jobs.run import ending
from hpctl.jobs.run.srun import SrunLaunchFailure, SrunTaskEnd
from hpctl.jobs.run.timeouts import CollectiveTimeoutEvidence, diagnose_hang_from_ras_report
from hpctl.jobs.run_failure import (
    FailedRunContext,
    LocateRank,
    diagnose_run_failure,
    diagnose_run_hang,
)
from hpctl.jobs.verdict import build_run_failure_verdict
from hpctl.toolkit.bounds import LATEST
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.assessment import NodeAssessment
from hpctl.vocabulary.failure import FailureVerdict
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName
from hpctl.vocabulary.model import Finding, NodeHealth
from hpctl.vocabulary.run_policy import RunAction, RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind

NO_STEP_MADE = "no progress"
"""The signature of a run that was ended because it made no progress."""


class RunEndEvidence(Struct, frozen=True, kw_only=True):
    """What a run left behind.

    `exit_code` is srun's or the script's, as a shell has it. `tail` are the last lines of the job's
    log, of all ranks; `rank_stderr` are those of each rank, used where `tail` is empty. `ends` are
    the ranks' ends in their order. `flight_prefix` is where each rank dumped its flight recorder,
    less the rank; dumps before `flight_since` (POSIX s) are ignored. `world` is how many ranks
    there were, 0 if unknown. `ras` is the JSON of NCCL's RAS service from before the end. `past`
    are the troubles of the job's runs before. `hung`: the run was ended because it made no
    progress. `failed`, `again` and `gpus` are as in `hpctl.jobs.run.ending.StepEndEvidence`.
    """

    exit_code: int
    tail: Sequence[str] = ()
    rank_stderr: Mapping[int, Sequence[str]] = field(default_factory=dict)
    ends: Sequence[SrunTaskEnd] = ()
    flight_prefix: str = ""
    flight_since: float = 0.0
    world: int = 0
    rank_nodes: Mapping[int, NodeName] = field(default_factory=dict)
    ras: bytes = b""
    stacks: StackHangVerdict | None = None
    findings: Mapping[NodeName, Sequence[Finding]] = field(default_factory=dict)
    past: Sequence[Trouble] = ()
    step: int | None = None
    hung: bool = False
    failed: Sequence[SrunLaunchFailure] = ()
    again: bool = False
    gpus: JobGpuAllocation = JobGpuAllocation()


class RunEndVerdict(Struct, frozen=True):
    """What ended a run, and the verdict on it; None where the run is done."""

    trouble: Trouble | None
    verdict: FailureVerdict | None


def diagnose_job_run_end(
    remains: RunEndEvidence, policy: RunPolicy, now: datetime
) -> RunEndVerdict:
    """Judge a run that has ended. Reads dumps in a bounded process; raises nothing."""
    trouble = find_job_run_failure(remains, policy, now)
    if trouble is None:
        return RunEndVerdict(None, None)
    nodes = {name: assess_node_findings(name, found) for name, found in remains.findings.items()}
    past = [PastJobFailure(one, RunAction.STEP) for one in remains.past]
    return RunEndVerdict(trouble, build_run_failure_verdict(trouble, past, nodes, policy, now))


def find_job_run_failure(
    remains: RunEndEvidence, policy: RunPolicy, now: datetime, locate: LocateRank | None = None
) -> Trouble | None:
    """Return what ended a run, with its rank and node; None where the run is done. `locate` is as
    in `diagnose_run_failure`."""
    tail = list(remains.tail)
    if not tail:
        lines = sorted(remains.rank_stderr.items())
        for rank, said in lines:
            tail += [_add_srun_rank_label_to_line(rank, line) for line in said]
    facts = FailedRunContext(
        tail=tail,
        ends=remains.ends,
        world=remains.world,
        rank_nodes=remains.rank_nodes,
        findings=remains.findings,
    )

    def collect_evidence() -> tuple[CollectiveTimeoutEvidence, JobRankResolver]:
        return _collect_timeout_evidence(remains)

    if remains.hung:
        hang = Trouble(TroubleKind.HANG, now, "it made no progress", NO_STEP_MADE)
        excerpt = ending.extract_log_tail_excerpt(tail)
        hang = replace(hang, step=remains.step, evidence=excerpt, exit_code=remains.exit_code)
        return diagnose_run_hang(hang, facts, collect_evidence, policy)
    evidence = ending.StepEndEvidence(
        remains.exit_code,
        ends=remains.ends,
        failed=remains.failed,
        tail=tail,
        step=remains.step,
        again=remains.again or bool(remains.past),
        gpus=remains.gpus,
    )
    trouble = ending.diagnose_step_end(evidence, policy, now, classify_crash)
    return (
        None if trouble is None else diagnose_run_failure(trouble, facts, collect_evidence, locate)
    )


def _add_srun_rank_label_to_line(rank: int, line: str) -> str:
    """Return a rank's line as `srun --label` prints it."""
    return f"{rank}: {line}"


def _collect_timeout_evidence(
    remains: RunEndEvidence,
) -> tuple[CollectiveTimeoutEvidence, JobRankResolver]:
    """Return what the dumps, NCCL's RAS service and the stacks of a run say."""
    prefix = remains.flight_prefix
    flight = (
        diagnose_hang_from_dumps_in_subprocess(prefix, remains.flight_since)
        if prefix
        else FlightRecorderHangVerdict()
    )
    names = JobRankResolver({}, {}, remains.world or flight.world)
    report = _read_ras_report(remains.ras)
    ras = diagnose_hang_from_ras_report(report, names) if report is not None else None
    return CollectiveTimeoutEvidence(flight, ras, remains.stacks), names


def _read_ras_report(raw: bytes) -> RasReport | None:
    """Return what the RAS service said; None where that cannot be read."""
    try:
        return parse_ras_report(raw) if raw else None
    except HpctlError:
        return None


def assess_node_findings(node: NodeName, findings: Sequence[Finding]) -> NodeAssessment:
    """Return what a node's findings amount to once no rule waits for companions any longer."""
    last = max((one.last for one in findings), default=LATEST)
    here = NodeGeneration(node, InstanceId(""), BootId(""))
    known = NodeHealth(here, last, tuple(findings))
    return assess_health(known, build_fault_rules(), last + SETTLED if findings else last)
