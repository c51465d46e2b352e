"""The cluster `hpctl` of submitit: `submitit.AutoExecutor(folder, cluster="hpctl")`.

It is submitit's own executor for Slurm, which submits by `hpctl sbatch`: a lost node restarts the
function on other nodes, and the result still comes. Three things differ.

- An exception is the function's result, so the job is not restarted after one (`POLICY`); the
  parameter `hpctl_policy` says otherwise. Troubles that another node can cure, such as a CUDA
  error, are restarted all the same, by the policy of the cluster.
- A job is done when its result is there, or when its end is the last one: an error of a run that
  hpctl starts again is not the result.
- Slurm's queue is asked, not its accounting, which a cluster need not have.

submitit's checkpoints stay submitit's: at SIGUSR2, which Slurm sends before the time limit and at a
preemption, submitit itself pickles the function and requeues its job. hpctl takes that for an
order of the owner and counts no restart. hpctl does not get the signal, so it never sends it: two
of them would requeue one job.
"""

from __future__ import annotations

import copy
import pickletools
import time
import uuid
import warnings
from pathlib import Path
from typing import Any

from submitit.core import core, utils
from submitit.slurm import slurm

from . import calls, command, slurm_queue
from .errors import ClientError
from .waiting import FinalJobStateReader, read_job_recoveries

PARAMETERS = frozenset(
    {
        "checkpoint_dir",
        "checkpoint_files",
        "fast_dir",
        "fast_flush",
        "fast_keep",
        "fast_rate",
        "fast_replicas",
        "fast_size",
        "log_rules",
        "no_resume",
        "policy",
        "preflight",
        "tier",
    }
)
"""Options of `hpctl sbatch`; `update_parameters(hpctl_policy="careful.yaml")` sets one."""
POLICY = "on: {crash: end}\n"
_FILE = "hpctl-policy.yaml"
FORGOTTEN = "FORGOTTEN"
"""The state of a job that Slurm has forgotten: no run of it is left."""


class HpctlInfoWatcher(slurm.SlurmInfoWatcher):  # type: ignore[misc,unused-ignore]
    """Reads the states of all jobs at once; REQUEUED is one that is to be started again."""

    def __init__(self, delay_s: int = 15) -> None:
        super().__init__(delay_s=delay_s)
        self._ends = FinalJobStateReader(read_job_recoveries)

    def update(self) -> None:
        """Read the jobs that have not ended."""
        ids = self._registered - self._finished
        if not ids:
            return
        self._num_calls += 1
        try:
            self._info_dict.update(self._read_job_states(ids))
        except ClientError as error:
            warnings.warn(f"the states of the jobs are those of before: {error}", stacklevel=2)
        self._last_status_check = time.time()
        self._finished |= {each for each in ids if self.is_done(each, mode="cache")}

    def _read_job_states(self, ids: set[str]) -> dict[str, dict[str, str]]:
        jobs = slurm_queue.read_queued_jobs(ids)
        last = self._ends.find_final_states(jobs.values())
        states = {each: {"JobID": each, "State": FORGOTTEN} for each in ids}
        for name, job in jobs.items():
            going = "REQUEUED" if job.has_ended else job.state
            states[name]["State"] = last.get(name, going)
        return states


class HpctlJob(slurm.SlurmJob[core.R]):
    """A job whose result is that of its last run."""

    watcher = HpctlInfoWatcher()

    def done(self, force_check: bool = False) -> bool:
        """Return whether the result is there, or the job has ended for good."""
        if self._sub_jobs:
            return all(job.done(force_check) for job in self._sub_jobs)
        if read_submitit_result_outcome(self.paths.result_pickle) == "success":
            return True
        mode = "force" if force_check else "standard"
        return bool(self.watcher.is_done(self.job_id, mode=mode))


class HpctlExecutor(slurm.SlurmExecutor):
    """Submits functions as batch jobs that hpctl protects."""

    job_class = HpctlJob

    @classmethod
    def affinity(cls) -> int:
        """Return -1 where hpctl or Slurm is missing, else less than submitit's own executor has:
        AutoExecutor takes this one where it is named."""
        try:
            command.find_hpctl_command()
        except ClientError:
            return -1
        return min(1, super().affinity())

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return set(super()._valid_parameters()) | PARAMETERS

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        own = {name: value for name, value in kwargs.items() if name in PARAMETERS}
        rest = {name: value for name, value in kwargs.items() if name not in PARAMETERS}
        super()._internal_update_parameters(**rest)
        self.parameters.update(own)

    def _internal_process_submissions(
        self, delayed_submissions: list[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Submit; several as one array. submitit's own method makes arrays of its `job_class`."""
        if len(delayed_submissions) == 1:
            return super()._internal_process_submissions(delayed_submissions)
        folder = utils.JobPaths.get_first_id_independent_folder(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        pickles: list[Path] = []
        for delayed in delayed_submissions:
            delayed.set_timeout(self.parameters.get("time", 5), self.max_num_timeout)
            pickles.append(folder / f"{uuid.uuid4().hex}.pkl")
            delayed.dump(pickles[-1])
        array = copy.copy(self)
        array.parameters = {**self.parameters, "map_count": len(pickles)}
        self._throttle()
        first = array._submit_command(self._submitit_command_str)
        tasks = range(first.num_tasks)
        jobs: list[core.Job[Any]] = []
        for index, pickle in enumerate(pickles):
            job: core.Job[Any] = HpctlJob(self.folder, f"{first.job_id}_{index}", list(tasks))
            job.paths.move_temporary_file(pickle, "submitted_pickle")
            jobs.append(job)
        return jobs

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        """Return submitit's script with lines for hpctl."""
        theirs = {name: value for name, value in self.parameters.items() if name not in PARAMETERS}
        own = {name: value for name, value in self.parameters.items() if name in PARAMETERS}
        own.setdefault("policy", self._write_job_policy_file())
        text = slurm._make_sbatch_string(command=command, folder=self.folder, **theirs)
        shebang, _, rest = text.partition("\n")
        lines = [f"#HPCTL {word}" for word in calls.format_command_line_options(own)]
        return "\n".join([shebang, *lines, rest])

    def _make_submission_command(self, submission_file_path: Path) -> list[str]:
        return [command.find_hpctl_command(), "sbatch", str(submission_file_path)]

    def _write_job_policy_file(self) -> str:
        """Write the policy of functions into the folder, and return its path."""
        path = utils.JobPaths.get_first_id_independent_folder(self.folder) / _FILE
        if not path.exists():
            path.write_text(POLICY)
        return str(path.resolve())


def read_submitit_result_outcome(path: Path) -> str:
    """Return the first word of a result, "success" or "error", without unpickling the rest.

    Empty where there is no result yet.
    """
    try:
        with path.open("rb") as file:
            for operation, argument, _ in pickletools.genops(file):
                if "UNICODE" in operation.name:
                    return str(argument)
    except (OSError, ValueError):
        pass
    return ""
