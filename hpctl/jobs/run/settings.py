"""What one `hpctl run` was asked to do, from its command line and the job's environment."""

import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hpctl.checkpoints.resume import (
    CheckpointSearchPlaces,
    ResumePoint,
    find_newest_resume_point,
    read_resume_places,
)
from hpctl.checkpoints.run_records import HISTORIES
from hpctl.jobs.crash import JobGpuAllocation
from hpctl.jobs.hangs.ras_report import RasAddress, make_job_ras_address, parse_ras_address
from hpctl.jobs.logs.rules import LogRuleSet
from hpctl.jobs.restart import JobRestartSetup, RestartMethod, choose_first_restart_method
from hpctl.jobs.run.flight import make_flight_dump_prefix
from hpctl.jobs.run.srun import SrunCommand, find_tasks_per_node
from hpctl.toolkit.bounds import parse_count
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.hostlist import expand_hostlist
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.policy_file import RunPolicyFile, merge_run_policy_files
from hpctl.vocabulary.run_policy import RunPolicy

MOST_TASKS = 65_536
"""Tasks of a step that are placed: as many ranks as a run may have that is judged."""


class RankLauncherSettings(Struct, frozen=True):
    """What a launcher on each node starts. `count`: on a node, 0 for as many as GPUs. `in_process`:
    after an exception they begin the program again in the same processes."""

    count: int = 0
    in_process: bool = False


@dataclass(slots=True)
class RunSettings:
    """One supervised run. `allocated` is what the job began with; `wanted` is a step's size.

    Only `policy` changes, once the head node has named the cluster's; `own` is the job's part.
    """

    job: JobId
    srun: SrunCommand
    tasks_per_node: int | None
    allocated: tuple[NodeName, ...]
    wanted: int
    policy: RunPolicy
    directory: Path | None
    history: Path | None
    environ: Mapping[str, str] = field(repr=False)
    restart: int = 0
    rules: LogRuleSet | None = None
    logs: tuple[Path, ...] = ()
    scratch: bool = False
    save_signal: int = signal.SIGUSR1
    torch: RankLauncherSettings | None = None
    """None: no launcher."""
    places: CheckpointSearchPlaces | None = field(default=None, repr=False)
    """Where to look for checkpoints, `directory` among them."""
    own: tuple[RunPolicyFile, ...] = ()

    def configure(self, below: Sequence[RunPolicyFile]) -> None:
        """Put the job's own policy over others. A step's size was settled at the start."""
        self.policy = replace(merge_run_policy_files([*below, *self.own]), nodes=self.policy.nodes)

    @property
    def has_save_signal(self) -> bool:
        """Return whether the job's owner says that the program saves at a signal
        (--save-signal)."""
        return bool(self.environ.get("HPCTL_SAVE_SIGNAL"))

    @property
    def ras(self) -> RasAddress:
        """Return where NCCL's RAS service of this job's ranks listens. Raises HpctlError."""
        text = self.environ.get("NCCL_RAS_ADDR", "")
        return parse_ras_address(text) if text else make_job_ras_address(int(self.job))

    @property
    def suspects(self) -> tuple[NodeName, ...]:
        """Return nodes of the allocation that the preflight has found bad."""
        listed = self.environ.get("HPCTL_SUSPECTS", "")
        if not listed:
            return ()
        names = map(NodeName, expand_hostlist(listed))
        return tuple(name for name in names if name in self.allocated)

    @property
    def progress_file(self) -> Path | None:
        """Return where the user has the ranks write their progress to; None: they get a socket."""
        kind, _, path = self.environ.get("HPCTL_PROGRESS", "").partition(":")
        return Path(path) if kind == "file" and path else None

    @property
    def restart_method(self) -> RestartMethod:
        """Return how the ranks of this job are restarted first."""
        in_process = self.torch is not None and self.torch.in_process
        return choose_first_restart_method(
            JobRestartSetup(True, self.torch is not None, in_process)
        )

    @property
    def files(self) -> tuple[str, ...]:
        """Return the patterns of checkpoint files that the job declares."""
        return self.places.files if self.places is not None else ()

    def find_newest_checkpoint(self) -> ResumePoint:
        """Return what the checkpoint directory holds now."""
        return find_newest_resume_point(self.directory, self.files)

    @property
    def resume_checkpoint_locations(self) -> CheckpointSearchPlaces | None:
        """Return where to look for a checkpoint; None for a start from scratch."""
        return None if self.scratch else self.places

    @property
    def least(self) -> int:
        """Return the smallest step that may be launched."""
        nodes = self.policy.nodes
        return min(self.wanted, nodes[0]) if nodes else self.wanted

    def map_tasks_to_nodes(self, nodes: Sequence[NodeName]) -> dict[int, NodeName]:
        """Return the node of each task that srun starts in a step on these nodes; none where that
        is not known.

        What the user typed after `--` goes before sbatch's options, as in srun. With the same
        number of tasks on each node, srun's default distribution numbers them node by node.
        """
        given = self.srun.given
        each = self.tasks_per_node or 0
        if not each:
            text = self.environ.get("SLURM_NTASKS_PER_NODE", "")
            for name in ("ntasks-per-node", "tasks-per-node"):
                text = given.get(name, text)
            each = parse_count(text)
        placed = "distribution" in given or "SLURM_DISTRIBUTION" in self.environ
        most = parse_count(given.get("ntasks", "")) or each * len(nodes)
        if placed or most != each * len(nodes) or most > MOST_TASKS:
            return {}
        return {rank: nodes[rank // each] for rank in range(each * len(nodes))}

    @property
    def tasks(self) -> int | None:
        """Return how many ranks a node of a step has; None if unknown."""
        if self.torch is not None:
            return self.torch.count or None
        return self.tasks_per_node

    def flight(self, attempt: int) -> str:
        """Return where the ranks of an attempt dump their flight recorders, as a path's
        beginning."""
        return make_flight_dump_prefix(self.environ, self.history, attempt)

    def gpus(self, in_slurm: int) -> JobGpuAllocation:
        """Return what the job's environment says of its GPUs. `in_slurm` is the number that a node
        has by Slurm, 0 where Slurm counts none."""
        visible = _find_visible_gpu_devices(self.srun, self.environ)
        return read_job_gpu_allocation(self.environ, visible, in_slurm)

    def account(self, attempt: int) -> Path | None:
        """Return where the launcher of an attempt writes what it did."""
        return self.history.with_suffix(f".{attempt}.account") if self.history else None

    @property
    def completion_marker_path(self) -> Path | None:
        """Return the file that says, once it is there, that the run is complete."""
        return self.history.with_suffix(".done") if self.history else None


def read_run_settings(  # noqa: PLR0913 -- the options of `hpctl run`, by keyword
    srun: SrunCommand,
    environ: Mapping[str, str],
    own: Sequence[RunPolicyFile] = (),
    *,
    nodes: str = "",
    spares: int | None = None,
    rules: LogRuleSet | None = None,
    logs: tuple[Path, ...] = (),
    torch: RankLauncherSettings | None = None,
) -> RunSettings:
    """Put them together. Raises HpctlError where we are in no job, or the numbers do not fit."""
    job = environ.get("SLURM_JOB_ID", "")
    listed = environ.get("SLURM_JOB_NODELIST", "")
    if not job.isdecimal() or not listed:
        raise HpctlError(
            "hpctl run was not started in a Slurm job: SLURM_JOB_ID and SLURM_JOB_NODELIST are "
            "not set",
            "Call hpctl run in a batch script (hpctl sbatch --spares 1 ...) or under salloc.",
        )
    if environ.get("SLURM_HET_SIZE"):
        raise HpctlError(
            "hpctl run does not supervise heterogeneous jobs: their steps span several allocations",
            "Use srun, and let hpctl sbatch requeue the job.",
        )
    allocated = tuple(NodeName(name) for name in expand_hostlist(listed))
    requested = nodes or srun.given.get("nodes", "")
    policy = merge_run_policy_files(own)
    policy, wanted = _choose_step_node_count(
        policy, requested, len(allocated), _count_spare_nodes(spares, environ, policy)
    )
    places = read_resume_places(environ)
    if environ.get("HPCTL_FAST_SPEC") and (places is None or places.fast is None):
        # The log says why they are off: the ranks save to the checkpoint directory.
        environ = {name: value for name, value in environ.items() if name != "HPCTL_FAST_DIR"}
    where = environ.get("HPCTL_CHECKPOINT_DIR")
    saved = Path(where) if where else None
    tasks = 1 if torch is not None else find_tasks_per_node(srun, environ, len(allocated), wanted)
    return RunSettings(
        job=JobId(int(job)),
        srun=srun,
        tasks_per_node=tasks,
        allocated=allocated,
        wanted=wanted,
        policy=policy,
        directory=saved,
        history=_choose_history_directory(saved, environ)
        / f"run-{_make_unique_job_key(job, environ)}.jsonl",
        environ=environ,
        restart=int(environ.get("SLURM_RESTART_COUNT", "0") or 0),
        rules=rules,
        logs=logs,
        scratch=environ.get("HPCTL_RESUME") == "scratch",
        save_signal=_read_checkpoint_save_signal(environ),
        torch=torch,
        places=places,
        own=tuple(own),
    )


def read_job_gpu_allocation(
    environ: Mapping[str, str], visible: str | None, in_slurm: int
) -> JobGpuAllocation:
    """Return what a job's environment says of its GPUs.

    `visible` is CUDA_VISIBLE_DEVICES of its ranks. `in_slurm` is the number of GPUs that a node has
    by Slurm, 0 where Slurm counts none or it is unknown.
    """
    listed = tuple(filter(None, environ.get("SLURM_JOB_GPUS", "").split(",")))
    counted = parse_count(environ.get("SLURM_GPUS_ON_NODE", "")) or len(listed)
    # Where Slurm counts no GPUs at all, a job has those of its nodes without asking.
    granted = counted or (0 if in_slurm else None)
    return JobGpuAllocation(visible, granted, listed)


_VISIBLE = "CUDA_VISIBLE_DEVICES"


def _find_visible_gpu_devices(srun: SrunCommand, environ: Mapping[str, str]) -> str | None:
    """Return CUDA_VISIBLE_DEVICES as the ranks are started with it; None where nothing sets it."""
    exported = srun.given.get("export", "").split(",")
    for word in (*srun.command, *exported):
        name, equals, value = word.partition("=")
        if name == _VISIBLE and equals:
            return value
    return environ.get(_VISIBLE)


def _read_checkpoint_save_signal(environ: Mapping[str, str]) -> int:
    """Return the signal at which the program saves; SIGUSR1 where none is given."""
    name = environ.get("HPCTL_SAVE_SIGNAL", "").partition("@")[0].upper().removeprefix("SIG")
    return signal.Signals.__members__.get(f"SIG{name}", signal.SIGUSR1)


def _count_spare_nodes(given: int | None, environ: Mapping[str, str], policy: RunPolicy) -> int:
    if given is not None:
        return given
    exported = environ.get("HPCTL_SPARES", "")
    return int(exported) if exported.isdecimal() else policy.spares


def _choose_step_node_count(
    policy: RunPolicy, requested: str, allocated: int, spares: int
) -> tuple[RunPolicy, int]:
    """Return the policy with its elastic range, and how many nodes a step gets when all is well."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", requested) if requested else None
    if requested and match is None:
        raise HpctlError(
            f"--nodes {requested} is not a number of nodes",
            "Write a number or a range, such as --nodes 8 or --nodes 6-8.",
        )
    if match is None:
        wanted = allocated - spares
    else:
        least, most = int(match[1]), int(match[2] or match[1])
        if match[2]:
            policy = replace(policy, nodes=(least, most))
        wanted = min(most, allocated) if match[2] else most
    if policy.nodes is not None:
        wanted = min(wanted, policy.nodes[1])
    if not 1 <= wanted <= allocated:
        raise HpctlError(
            f"the allocation has {allocated} nodes, {spares} of them spare:"
            f" too few remain for a step of {wanted}",
            "Submit the job again with more nodes: --nodes must count the step's nodes and the "
            "spares; `hpctl sbatch --spares COUNT` adds the spares.",
        )
    return policy, wanted


def _make_unique_job_key(job: str, environ: Mapping[str, str]) -> str:
    """Return what distinguishes this job from others in one directory: every cluster counts its
    jobs from 1."""
    cluster = re.sub(r"[^A-Za-z0-9_.-]", "_", environ.get("SLURM_CLUSTER_NAME", ""))
    return f"{cluster}-{job}" if cluster else job


def _choose_history_directory(saved: Path | None, environ: Mapping[str, str]) -> Path:
    """Return the path of the history: with the checkpoints, where every node of a later run sees
    it; else in the user's own directory."""
    if saved is not None:
        return saved / HISTORIES
    state = environ.get("XDG_STATE_HOME") or os.path.join(
        environ.get("HOME", "/tmp"),  # noqa: S108 (no HOME: nothing durable is there anyway)
        ".local/state",
    )
    return Path(state) / "hpctl"
