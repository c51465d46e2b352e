"""How a step's end reads: done, or a trouble. Pure; the exit-code contract is here.

| end | means |
|---|---|
| a node of the step is lost or does not answer | a node's trouble, whatever the code |
| `final_exit_codes` (93) of any rank | final: not run again, passed on |
| `corruption_exit_codes` (16, 17) of any rank | evidence of silent data corruption |
| any other, after the program reported its end | done, passed on |
| 0 with evidence of progress | done, passed on |
| 0 without | a failure (see `is_run_finished`) |
| 126 or 127 of every rank, in the job's first step | final: its command is not there |
| anything else | a crash, classified by code and log |
"""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from msgspec import Struct
from msgspec.structs import replace

from hpctl.checkpoints.resume import ResumePoint
from hpctl.jobs.crash import JobGpuAllocation, explain_missing_gpu_failure
from hpctl.jobs.run.srun import SrunLaunchFailure, SrunTaskEnd, find_root_cause_task_end
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import EVIDENCE_CHARS, Trouble, TroubleKind

_EMPTY = ResumePoint()
_BEGINS = re.compile(r":| did not come ")
"""What follows the rank where a sentence is about it."""
_ABORTED = "SIGABRT"
"""The signature of a rank that aborted itself, as torch's watchdog does after a timeout."""
TAIL_LINES = 40
"""Lines of the log's end that a trouble carries as evidence."""


class StepEndEvidence(Struct, frozen=True):
    """All that is known when a step has ended.

    `code` is srun's (128 + n for a signal). `lost` are nodes of the step that Slurm took out or
    that did not answer, with why. `marked`: the program reported its end. `stepped`: it
    reported at least one training step. `before` and `after` are the newest complete checkpoints
    at the step's start and end. `step` is the last training step seen.
    """

    code: int
    ends: Sequence[SrunTaskEnd] = ()
    failed: Sequence[SrunLaunchFailure] = ()
    lost: Mapping[NodeName, str] | None = None
    tail: Sequence[str] = ()
    marked: bool = False
    stepped: bool = False
    before: ResumePoint = _EMPTY
    after: ResumePoint = _EMPTY
    step: int | None = None
    account: Trouble | None = None
    """What a launcher inside the step says of its end."""
    again: bool = False
    """The job had a step before this one."""
    gpus: JobGpuAllocation = JobGpuAllocation()
    """What the job's environment says of its GPUs."""


Classify = Callable[..., Trouble]


def choose_run_exit_code(evidence: StepEndEvidence, policy: RunPolicy) -> int:
    """Return the exit code that says why: of the rank at the root, where srun named it, else
    srun's."""
    end = find_root_cause_task_end(
        evidence.ends, policy.final_exit_codes, policy.corruption_exit_codes
    )
    if end is not None and end.code != 0 and evidence.code != 0:
        return end.code
    return evidence.code


def diagnose_step_end(
    evidence: StepEndEvidence, policy: RunPolicy, now: datetime, classify: Classify
) -> Trouble | None:
    """Return the trouble that ended the step; None where the run is done."""
    trouble = _classify_step_end_failure(evidence, policy, now, classify)
    if trouble is None:
        return None
    trouble = explain_missing_gpu_failure(trouble, _find_job_gpu_allocation(evidence, trouble))
    return replace(
        trouble,
        step=evidence.step if trouble.step is None else trouble.step,
        progress=evidence.after.step if trouble.progress is None else trouble.progress,
        evidence=trouble.evidence or extract_log_tail_excerpt(evidence.tail),
    )


def add_node_name_to_failure_text(trouble: Trouble) -> Trouble:
    """Return a trouble whose words name the node of the rank that they begin with."""
    rank = f"rank {trouble.rank}"
    if trouble.rank is None or trouble.node is None or not _BEGINS.match(trouble.why, len(rank)):
        return trouble
    if not trouble.why.startswith(rank):
        return trouble
    return replace(trouble, why=f"{rank} on {trouble.node}{trouble.why.removeprefix(rank)}")


def _classify_step_end_failure(
    evidence: StepEndEvidence, policy: RunPolicy, now: datetime, classify: Classify
) -> Trouble | None:
    code = choose_run_exit_code(evidence, policy)
    if code == 0:
        return None if is_run_finished(evidence) else _make_no_progress_failure(evidence, now)
    end = find_root_cause_task_end(
        evidence.ends, policy.final_exit_codes, policy.corruption_exit_codes
    )
    if evidence.marked and code not in policy.corruption_exit_codes:
        # Programs that are done often fail in tearing down. Another run could only do that again.
        return None
    answered = code in (*policy.final_exit_codes, *policy.corruption_exit_codes)
    if evidence.lost and not answered:
        node, why = next(iter(evidence.lost.items()))
        more = f" (and {len(evidence.lost) - 1} more)" if len(evidence.lost) > 1 else ""
        why = f"node {node} is lost{more}: {why}"
        return Trouble(TroubleKind.NODE, now, why, "node lost", node, exit_code=code)
    unheard = next((each for each in evidence.failed if each.node is not None), None)
    if unheard is not None:
        why = f"srun could not start a task on {unheard.node}: {unheard.text}"
        return Trouble(TroubleKind.NODE, now, why, "node launch", unheard.node, exit_code=code)
    account = evidence.account
    if account is not None and account.signature != _ABORTED:
        return replace(account, at=now)
    trouble = classify(
        code,
        evidence.tail,
        at=now,
        node=end.node if end else None,
        rank=end.rank if end else None,
        policy=policy,
        again=evidence.again or _has_program_started_on_any_rank(evidence),
    )
    # A rank that aborted itself may have lost others, which its log shows and no launcher.
    if account is not None and trouble.kind not in (TroubleKind.NETWORK, TroubleKind.HANG):
        return replace(account, at=now)
    return trouble


def _find_job_gpu_allocation(evidence: StepEndEvidence, trouble: Trouble) -> JobGpuAllocation:
    """Return what is known of the job's GPUs, with the nodes on which tasks ended as this one
    did."""
    nodes = {end.node for end in evidence.ends if end.code == trouble.exit_code}
    worked = evidence.stepped or evidence.before.path is not None
    return replace(evidence.gpus, nodes=tuple(sorted(nodes)), worked=worked)


def is_run_finished(evidence: StepEndEvidence) -> bool:
    """Return whether exit code 0 is believed.

    It is, unless there is a complete checkpoint that did not get newer, and nothing else says
    that the program did something: no end mark, no training step. A program that never saved
    anything that hpctl recognises cannot be judged by it: that is done, not lost.
    """
    if evidence.marked or evidence.stepped:
        return True
    before, after = evidence.before, evidence.after
    if not before.judged or not after.judged or before.path is None:
        return True
    return (after.path, after.step) != (before.path, before.step)


def _make_no_progress_failure(evidence: StepEndEvidence, now: datetime) -> Trouble:
    why = (
        f"it ended with 0, took no step and saved nothing newer than {evidence.after.path}"
        " (a run that is complete says so: touch $HPCTL_DONE)"
    )
    return Trouble(TroubleKind.NO_PROGRESS, now, why, "exit 0 without progress", exit_code=0)


def _has_program_started_on_any_rank(evidence: StepEndEvidence) -> bool:
    """Return whether the command could be started on some rank at least."""
    moved = evidence.after.step != evidence.before.step
    return evidence.stepped or moved or len({end.code for end in evidence.ends}) > 1


def extract_log_tail_excerpt(tail: Sequence[str]) -> str:
    """Return the end of the log, as much as a trouble carries."""
    return "\n".join(tail[-TAIL_LINES:])[-EVIDENCE_CHARS:]
