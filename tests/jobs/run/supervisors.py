"""A supervisor of `hpctl run` whose allocation and steps are stand-ins: nothing is launched."""

from collections.abc import Callable
from unittest.mock import Mock

from hpctl.jobs.crash import classify_crash
from hpctl.jobs.run.allocation import AllocationState, NodeFitness
from hpctl.jobs.run.ending import StepEndEvidence
from hpctl.jobs.run.history import JobHistory
from hpctl.jobs.run.settings import RunSettings, read_run_settings
from hpctl.jobs.run.srun import RunningStep, StepLauncher, parse_srun_command
from hpctl.jobs.run.steps import StepRunner
from hpctl.jobs.run.supervise import StepSupervisor
from hpctl.jobs.run.timeouts import CollectiveTimeoutEvidence
from hpctl.jobs.run.trouble_handler import RunFailureHandler
from hpctl.jobs.run_failure import FailedRunContext


def make_settings(nodes: str = "n[1-2]") -> RunSettings:
    """Return the settings of a run of job 7 without a checkpoint directory."""
    return read_run_settings(
        parse_srun_command(["x"]), {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": nodes}
    )


def make_allocation(fit: NodeFitness, *, recoverable: bool = True) -> Mock:
    """Return an allocation that is alive and whose nodes are as given."""
    return Mock(
        spec=AllocationState, alive=True, recoverable=recoverable, healed=set(), gpus=0,
        look=Mock(return_value=fit), lost=Mock(return_value={}),
    )  # fmt: skip


def make_handler(
    allocation: Mock, say: Callable[[str], None], nodes: str, history: JobHistory | None = None
) -> RunFailureHandler:
    """Return a handler of troubles; without `history` one that begins with none."""
    launcher, known = Mock(spec=StepLauncher), history or JobHistory(None)
    return RunFailureHandler(make_settings(nodes), allocation, known, launcher, say)


def make_supervisor(fit: NodeFitness, *, recoverable: bool = True, nodes: str = "n[1-2]"):
    """Return a supervisor; what a step leaves is what a test puts into `steps.evidence`."""
    launcher = Mock(spec=StepLauncher, runner=Mock())
    one = StepSupervisor(make_settings(nodes), launcher, classify_crash, Mock())
    one.allocation = make_allocation(fit, recoverable=recoverable)
    one.steps = Mock(spec=StepRunner, asked_to_end=False)
    one.steps.facts.side_effect = lambda known, _: FailedRunContext(
        tail=known.tail, ends=known.ends, world=3
    )
    one.steps.collect_timeout_evidence.return_value = (CollectiveTimeoutEvidence(), {})
    one.handler = make_handler(one.allocation, Mock(), nodes)
    return one


def make_step(*nodes: str) -> RunningStep:
    """Return the first step of a run on these nodes."""
    return RunningStep(1, nodes, Mock(), 0.0)


def end_step(one: StepSupervisor, step: RunningStep, evidence: StepEndEvidence):
    """Return what a supervisor answers to the end of a step that left this."""
    one.steps.evidence.return_value = evidence
    return one.handle_unexpected_step_end(step, evidence.code, {})
