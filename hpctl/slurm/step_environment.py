"""The environment of a job step that hpctl starts."""

from collections.abc import Mapping, Sequence

from hpctl.vocabulary.identity import NodeName

_SHAPE = (
    "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NODELIST",
    "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_HOSTFILE",
    "SLURM_ARBITRARY_NODELIST", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEPID",
    "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_SRUN_COMM_HOST",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID",
)  # fmt: skip


def make_step_environment(
    environ: Mapping[str, str], nodes: Sequence[NodeName], allocated: Sequence[NodeName]
) -> dict[str, str]:
    """Return what srun is started with: ours, less what the batch script's start left in it.

    Those variables are options to srun (SLURM_NNODES is -N) and go stale when a node is lost.
    A MASTER_ADDR that names another node of the allocation is the old rendezvous: it moves.
    """
    env = {name: value for name, value in environ.items() if name not in _SHAPE}
    master = env.get("MASTER_ADDR", "")
    if master in allocated and master not in nodes:
        env["MASTER_ADDR"] = str(nodes[0])
    return env
