"""`hpctl sbatch --preflight quick`: a job's nodes are tested in its own allocation, before a step.

Runs in the batch script (hpctl/jobs/sbatch/preamble.sh), as the job's owner. Prints one line for
the shell: `go`, `without NODES` (spares take their places), or `leave` (the job is requeued without
them; this process waits to be ended with it). It fails open: where the tests do not run at all, or
every node fails, or swapping has not helped, the job goes ahead with a warning.
"""

import os
import sys
import time
from collections.abc import Mapping
from datetime import datetime

from hpctl.nodes.acceptance.limits import (
    AcceptanceMeasurement,
    compute_figure_limits,
    find_slow_figures,
)
from hpctl.nodes.acceptance.result import AcceptanceTestResult
from hpctl.nodes.acceptance.run import (
    QUICK_S,
    Found,
    format_failed_node_reasons,
    run_acceptance_tests_on_nodes,
    select_forwarded_environment_variables,
    summarize_failed_tests,
)
from hpctl.slurm.run import SlurmCommandRunner
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.hostlist import expand_hostlist, fold_hostlist
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.job_recovery import JobReport, RequestedAction
from hpctl.vocabulary.run_policy import RunAction
from hpctl.vocabulary.trouble import Trouble, TroubleKind
from hpctl.wire.job_report_client import WHOLE_FAILOVER_S, send_job_report

LIMITS_S = {"quick": QUICK_S, "full": 4 * 3600.0}
"""By level, how long the tests of one node may take."""
MOST_SWAPS = 3
"""Restarts after which a job goes ahead with the nodes that it has."""
LEAVE_S = 60.0
"""How long the daemon may take to requeue the job."""


def find_nodes_failing_preflight(nodes: tuple[NodeName, ...], found: Found) -> dict[NodeName, str]:
    """Return which nodes of a job must not have a step, and why.

    A node that reported nothing while others did is bad, and so is one that is slow compared with
    the others of the job, where they are enough to compare with.
    """
    bad = {}
    runs: list[AcceptanceMeasurement] = []
    for node in nodes:
        runs += [_build_acceptance_measurement(node, result) for result in found.get(node, ())]
    known = compute_figure_limits(runs)
    for node in nodes:
        if node not in found:
            bad[node] = "reported no test result"
        elif why := summarize_failed_tests(found[node]):
            bad[node] = why
        else:
            behind = find_slow_figures([run for run in runs if run.node == node], known)
            if behind and not behind[0].again:
                bad[node] = str(behind[0])
    return bad


def _build_acceptance_measurement(
    node: NodeName, result: AcceptanceTestResult
) -> AcceptanceMeasurement:
    return AcceptanceMeasurement("", node, result.test, result.figures, result.status == "Passed")


def decide_preflight_verdict(
    nodes: tuple[NodeName, ...], bad: Mapping[NodeName, str], spares: int, restart: int
) -> tuple[str, str]:
    """Return the line for the shell, and the message to the user."""
    if not bad:
        return "go", f"preflight: {len(nodes)} node(s) passed"
    text = f"preflight: {format_failed_node_reasons(bad)}"
    if len(bad) == len(nodes) > 1:
        return "go", f"{text}: every node fails, so the test is in doubt; going ahead"
    if len(bad) <= spares:
        return f"without {fold_hostlist(bad)}", f"{text}: spares take their places"
    if restart >= MOST_SWAPS:
        return "go", f"{text}: {restart} restarts have not helped; going ahead"
    return "leave", f"{text}: asking for other nodes"


def requeue_job_without_nodes(
    job: int,
    restart: int,
    bad: Mapping[NodeName, str],
    runner: SlurmCommandRunner,
    environ: Mapping[str, str],
) -> str:
    """Have the job requeued without these nodes. Returns why it still runs."""
    why = f"preflight: {format_failed_node_reasons(bad)}"
    node, reason = next(iter(bad.items()))
    trouble = Trouble(TroubleKind.NODE, datetime.now(UTC), reason, "preflight", node)
    report = JobReport(
        JobId(job),
        restart,
        trouble,
        RunAction.REQUEUE,
        why,
        RequestedAction.REQUEUE,
        tuple(sorted(bad)),
    )
    reply = send_job_report(report, failover_s=WHOLE_FAILOVER_S)
    if reply is not None and reply.ok and reply.acts:
        print_job_log_message("preflight: the daemon was asked for a requeue without them")
        time.sleep(LEAVE_S)
    else:
        print_job_log_message(
            "preflight: no daemon acts on this job; Slurm may give it the same nodes again"
        )
    ran = runner.run("scontrol", "requeue", str(job), environ=environ)
    if ran.ok:
        time.sleep(LEAVE_S)
    return f"it was not requeued: {ran.message if not ran.ok else 'Slurm has not ended it'}"


def print_job_log_message(text: str) -> None:
    """Print a message to the user in the job's log."""
    print(make_printable(f"hpctl: {text}", lines=True), file=sys.stderr, flush=True)


def main(level: str, environ: Mapping[str, str] = os.environ) -> str:
    """Test the nodes of this job; return the line for the shell."""
    nodes = tuple(NodeName(name) for name in expand_hostlist(environ.get("SLURM_JOB_NODELIST", "")))
    job, restart = int(environ["SLURM_JOB_ID"]), int(environ.get("SLURM_RESTART_COUNT", "0"))
    runner = SlurmCommandRunner()
    inside = select_forwarded_environment_variables(environ) | {"SLURM_JOB_ID": str(job)}
    began = time.monotonic()
    found, error = run_acceptance_tests_on_nodes(
        runner, nodes, level, LIMITS_S[level], ("--overlap",), inside
    )
    if not found:
        print_job_log_message(
            f"preflight: no test could be run, going ahead: {error or 'srun error nothing'}"
        )
        return "go"
    bad = find_nodes_failing_preflight(nodes, found)
    line, text = decide_preflight_verdict(
        nodes, bad, int(environ.get("HPCTL_SPARES") or 0), restart
    )
    print_job_log_message(f"{text} ({time.monotonic() - began:.0f} s)")
    if line == "leave":
        why = requeue_job_without_nodes(job, restart, bad, runner, inside)
        print_job_log_message(f"preflight: going ahead with these nodes: {why}")
        return "go"
    return line


if __name__ == "__main__":
    print(make_printable(main(sys.argv[1])))
