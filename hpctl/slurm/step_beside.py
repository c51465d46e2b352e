"""The options of a step that runs beside a job's own ones, on what they use."""

from collections.abc import Sequence

from hpctl.toolkit.hostlist import fold_hostlist


def make_overlapping_step_options(job: int, nodes: Sequence[str], name: str) -> list[str]:
    """Return srun's options for one task on each of these nodes of a job, which starts at once.

    It takes no GPU and no core from the job's other steps. `name`: of the step.
    """
    return [
        f"--jobid={job}", "--overlap", "--gres=none", "--cpu-bind=none", "--mem-bind=none",
        "--input=none", "--kill-on-bad-exit=0", f"--job-name={name}", "--chdir=/",
        f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1",
        f"--nodelist={fold_hostlist(nodes)}",
    ]  # fmt: skip
