"""How the ranks of a job are restarted: the way is chosen here, by the kind of job.

| kind of job | way | who restarts the ranks |
|---|---|---|
| a script with srun, mpirun or anything else | REQUEUE | the daemon has Slurm start the job again |
| `hpctl run` | STEP | the supervisor starts another step in the same allocation |
| `hpctl run --torch` | PROCESS | the launchers within the step start new processes |
| `hpctl run --torch --in-process` | IN_PROCESS | each rank begins its program again |

A way is the first that is tried: whether it can be taken in one case, and which of the ways above
it in the table is taken else, `decide.decide` says by the job's policy.
"""

from enum import Enum

from msgspec import Struct

from hpctl.vocabulary.registration import JobRegistration


class JobRestartSetup(Struct, frozen=True):
    """What of a job chooses the way.

    `supervised`: `hpctl run` starts its steps. `launcher`: with `--torch`. `in_process`: with
    `--in-process`.
    """

    supervised: bool = False
    launcher: bool = False
    in_process: bool = False


class RestartMethod(Enum):
    """One way to restart ranks, from the one that costs most to the one that costs least."""

    REQUEUE = 1
    STEP = 2
    PROCESS = 3
    IN_PROCESS = 4

    @property
    def has_supervisor(self) -> bool:
        """Return whether a supervisor in the job restarts what ends, and the daemon leaves that to
        it."""
        return self is not RestartMethod.REQUEUE

    @property
    def has_launcher(self) -> bool:
        """Return whether launchers restart ranks within their step."""
        return self in (RestartMethod.PROCESS, RestartMethod.IN_PROCESS)


def choose_restart_method(registered: JobRegistration) -> RestartMethod:
    """Return the way of a registered job. Only its supervisor knows which launcher is in it."""
    return choose_first_restart_method(JobRestartSetup(registered.supervised))


def choose_first_restart_method(job: JobRestartSetup) -> RestartMethod:
    """Return the way in which a job's ranks are restarted first."""
    if not job.supervised:
        return RestartMethod.REQUEUE
    if not job.launcher:
        return RestartMethod.STEP
    return RestartMethod.IN_PROCESS if job.in_process else RestartMethod.PROCESS
