"""Why a script failed, by what it wrote: the reading that `hpctl run` does, after the fact.

What `hpctl run` reads of a step while it runs is in the log afterwards: the lines of srun and those
of the ranks that explain an end, and the ranks' flight recorders are where the script's first lines
had them dumped. All become the RunEndEvidence that `post_mortem` reads, so that a rank's exception
has the same words in a job with plain srun or torchrun. The findings of the job's nodes are known
to the daemon only, which adds them to what is reported here.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Final

from msgspec.structs import replace

from hpctl.jobs.crash import classify_crash
from hpctl.jobs.launchers import is_log_of_launcher_started_run
from hpctl.jobs.log_end import LogTailBuffer, strip_srun_task_label
from hpctl.jobs.run.flight import find_script_flight_dump_prefix
from hpctl.jobs.run.history import format_supervisor_log_line
from hpctl.jobs.run.output import StepOutput, remove_hpctl_output_lines
from hpctl.jobs.run.post_mortem import RunEndEvidence, find_job_run_failure
from hpctl.jobs.run.settings import read_job_gpu_allocation
from hpctl.jobs.run_failure import FailedRunContext, find_node_of_failed_task
from hpctl.jobs.verdict import build_run_failure_verdict
from hpctl.toolkit.bounds import make_printable, parse_count
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.hostlist import HostlistError, expand_hostlist
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.policy_file import merge_run_policy_files, parse_run_policy_json
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from hpctl.wire.job_report_client import send_job_report

_OTHER_JOBS: Final = re.compile(rb"^slurmstepd\S*: error: \*\*\* JOB .*\n", re.MULTILINE)
"""That Slurm ended a job: not this one, whose script ended without Slurm."""
_ROOT_CAUSE: Final = "Root Cause (first observed failure):"
_HOST: Final = re.compile(r"^ {1,8}host {1,8}: ([\w.-]{1,253})$")
_RANK: Final = re.compile(r"^ {1,8}rank {1,8}: (\d{1,7}) \(local_rank: \d{1,7}\)$")


def report_script_end_cause(code: int, block: bytes, environ: Mapping[str, str]) -> None:
    """Write into the log why the script ended, and report it to the daemon. `block` is what it
    wrote."""
    now = datetime.now(UTC)
    trouble = find_script_end_cause(code, block, environ, now)
    if trouble is None:
        return
    verdict = build_run_failure_verdict(trouble, (), {}, _read_job_run_policy(environ), now)
    text = f"the script ended with exit code {code}, {trouble.kind}: {trouble.why} ({verdict.text})"
    print(make_printable(format_supervisor_log_line(now, text)), file=sys.stderr, flush=True)
    job, restarts = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_RESTART_COUNT") or "0"
    if job.isdecimal() and restarts.isdecimal():
        send_job_report(JobReport(JobId(int(job)), int(restarts), trouble))


def find_script_end_cause(
    code: int, block: bytes, environ: Mapping[str, str], now: datetime
) -> Trouble | None:
    """Return why a script ended with `code`; None where its log adds nothing to the code."""
    heard = StepOutput(tail=LogTailBuffer())
    heard.hear(_OTHER_JOBS.sub(b"", remove_hpctl_output_lines(block)))
    restarted = environ.get("SLURM_RESTART_COUNT", "") not in ("", "0")
    remains = RunEndEvidence(
        exit_code=code,
        ends=heard.ends,
        failed=heard.failed,
        tail=heard.tail.list_lines(),
        again=restarted or bool(environ.get("HPCTL_RESUME_FROM")),
        gpus=read_job_gpu_allocation(environ, environ.get("CUDA_VISIBLE_DEVICES"), 0),
        flight_prefix=find_script_flight_dump_prefix(environ),
        flight_since=float(parse_count(environ.get("HPCTL_RUN_START", ""))),
    )
    policy = _read_job_run_policy(environ)
    locate = partial(_add_failed_rank_node_to_failure, nodes=_read_job_nodes(environ))
    trouble = find_job_run_failure(remains, policy, now, locate)
    if trouble is None:
        return None
    if not heard.ends and not heard.failed and trouble.rank is None:
        silent = classify_crash(code, (), at=now, policy=policy, again=remains.again)
        if trouble.signature == silent.signature:
            return None
    return trouble


def _read_job_run_policy(environ: Mapping[str, str]) -> RunPolicy:
    """Return the job's own policy, which says what its exit codes mean."""
    text = environ.get("HPCTL_POLICY", "")
    try:
        return merge_run_policy_files([parse_run_policy_json(json.loads(text))] if text else [])
    except ValueError:
        return merge_run_policy_files([])


def _add_failed_rank_node_to_failure(
    trouble: Trouble, facts: FailedRunContext, *, nodes: Sequence[NodeName]
) -> Trouble:
    """Return the trouble with a node of this job, where the log names one.

    A program knows its host by another name than Slurm does, or by none.
    """
    tail, rank = facts.tail, trouble.rank
    places = [trouble.node]
    if is_log_of_launcher_started_run(tail):
        reported = _map_ranks_to_hosts_from_log(tail)
        places.insert(0, reported.get(rank) if rank is not None else None)
        places.append(_find_torchrun_agent_node(trouble, reported, facts, nodes))
    else:
        places.append(find_node_of_failed_task(trouble, facts))
    if len(nodes) == 1:
        places.append(nodes[0])
    node = next((node for node in places if node in nodes), None)
    return replace(trouble, node=node)


def _find_torchrun_agent_node(
    trouble: Trouble,
    reported: Mapping[int, NodeName],
    facts: FailedRunContext,
    nodes: Sequence[NodeName],
) -> NodeName | None:
    """Return the node of a rank by srun's tasks, which are torchrun's agents; None where that is
    open.

    The first agent to end is the one whose rank failed. A rank that others wait for is not of an
    agent that reports them, so of two nodes it is on the other one.
    """
    first = facts.ends[0].node if facts.ends else None
    if trouble.kind not in (TroubleKind.NETWORK, TroubleKind.HANG):
        return first
    one_reports = sum(_ROOT_CAUSE in line for line in facts.tail) == 1
    if trouble.rank is None or not one_reports:
        return None
    if trouble.rank in reported:
        return first
    others = [node for node in nodes if node != first]
    return others[0] if first in nodes and len(others) == 1 else None


def _read_job_nodes(environ: Mapping[str, str]) -> tuple[NodeName, ...]:
    try:
        return tuple(
            NodeName(name) for name in expand_hostlist(environ.get("SLURM_JOB_NODELIST", ""))
        )
    except HostlistError:
        return ()


def _map_ranks_to_hosts_from_log(lines: Sequence[str]) -> dict[int, NodeName]:
    """Return the hosts that torchrun's reports name for ranks, by their short names."""
    found: dict[int, NodeName] = {}
    host = ""
    for line in map(strip_srun_task_label, lines):
        match = _HOST.match(line)
        if match:
            host = match[1]
        elif (match := _RANK.match(line)) and host:
            found[int(match[1])] = NodeName(host.partition(".")[0])
    return found
