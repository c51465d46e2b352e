"""srun's command line: where the options end and the command begins, and a step's own options.

Later options win in srun, so what the supervisor must decide (-N, -w) stands after the user's
options and before the command. The table is src/common/slurm_opt.c's for srun (22.05 to 25.11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpctl.core.hostlist import fold
from hpctl.core.model import NodeName
from hpctl.errors import HpctlError


def _names(words: str) -> frozenset[str]:
    return frozenset(words.split())


_VALUED = _names("""
    account acctg-freq accel-bind bb bbf bcast-exclude begin chdir cluster-constraint clusters
    comment constraint container container-id core-spec cores-per-socket cpu-bind cpu-freq
    cpus-per-gpu cpus-per-task deadline delay-boot dependency distribution epilog error exclude
    export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node
    gpus-per-socket gpus-per-task gres gres-flags het-group hint input job-name jobid licenses
    mail-type mail-user max-exit-timeout max-threads mcs-label mem mem-bind mem-per-cpu
    mem-per-gpu mincpus mpi msg-timeout network nodefile nodelist nodes ntasks ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition
    power prefer priority profile prolog qos relative reservation segment signal slurmd-debug
    sockets-per-node switches task-epilog task-prolog tasks-per-node thread-spec threads
    threads-per-core time time-min tmp treewidth tres-bind tres-per-task uid wait wckey
""")
_SHORT = {
    "A": "account", "B": "extra-node-info", "C": "constraint", "D": "chdir", "F": "nodefile",
    "G": "gpus", "J": "job-name", "L": "licenses", "M": "clusters", "N": "nodes",
    "S": "core-spec", "T": "threads", "W": "wait", "c": "cpus-per-task", "d": "dependency",
    "e": "error", "i": "input", "m": "distribution", "n": "ntasks", "o": "output",
    "p": "partition", "q": "qos", "r": "relative", "t": "time", "w": "nodelist", "x": "exclude",
}  # fmt: skip
_ATTACHED = {"I": "immediate", "K": "kill-on-bad-exit", "k": "no-kill"}
"""Their optional value is whatever is attached."""
_PLACES = ("nodelist", "exclude", "relative", "nodefile", "jobid", "het-group")
_SHAPE = (
    "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NODELIST",
    "SLURM_JOB_NODELIST", "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_HOSTFILE",
    "SLURM_ARBITRARY_NODELIST", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_NODES", "SLURM_STEPID",
    "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_SRUN_COMM_HOST",
    "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SrunCommand:
    """What stands after `--`: srun's options as typed, what they say, and the command."""

    options: tuple[str, ...]
    given: Mapping[str, str]
    command: tuple[str, ...]

    @property
    def lives_on(self) -> bool:
        """The user wants the step to go on when a rank ends badly: --kill-on-bad-exit=0."""
        return self.given.get("kill-on-bad-exit") == "0"

    @property
    def multi_prog(self) -> bool:
        """The command is a file that names several programs: nothing may stand before it."""
        return "multi-prog" in self.given


def parse_srun(arguments: Sequence[str]) -> SrunCommand:
    """Split srun's arguments. Raises HpctlError where there is no command, or where the options
    pin the step to nodes, which is what the supervisor decides."""
    left, options, given = list(arguments), [], {}
    while left and left[0].startswith("-") and left[0] != "-":
        argument = left.pop(0)
        if argument == "--":
            break
        options.append(argument)
        name, value = _option(argument)
        if value is None:
            value = left.pop(0) if left else ""
            options.append(value)
        given[name] = value
    if not left:
        raise HpctlError(
            "there is no command to run", "Write: hpctl run [options] -- [srun options] command"
        )
    pinned = [name for name in _PLACES if name in given]
    if pinned:
        raise HpctlError(
            f"--{pinned[0]} pins the step to nodes, which hpctl run chooses anew at each start",
            "Leave it out; --nodes and --spares say how many.",
        )
    return SrunCommand(tuple(options), given, tuple(left))


def _option(word: str) -> tuple[str, str | None]:
    """An option's long name and value; None: the next word is the value."""
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, value if equals or name not in _VALUED else None
    name, rest = "", word[1:]
    while rest:  # -un4: of several letters in one word only the last may have a value
        letter, rest = rest[0], rest[1:]
        if letter in _SHORT:
            return _SHORT[letter], rest or None
        name = _ATTACHED.get(letter, letter)
        if letter in _ATTACHED:
            break
    return name, rest


@dataclass(frozen=True, slots=True)
class TaskLayout:
    """How many tasks a step has: so many a node, or as the user's own options say (None)."""

    tasks_per_node: int | None = None


def task_layout(
    srun: SrunCommand, environ: Mapping[str, str], allocated: int, wanted: int
) -> TaskLayout:
    """Tasks of a step, where the batch script's own options speak of the whole allocation.

    `sbatch -N 5 -n 40` with a spare means 40 tasks on 5 nodes: 8 a node, 32 in a step of 4.
    Raises HpctlError where that does not come out even.
    """
    if {"ntasks", "ntasks-per-node", "tasks-per-node", "ntasks-per-gpu"} & set(srun.given):
        return TaskLayout()
    if environ.get("SLURM_NTASKS_PER_NODE") or "SLURM_NTASKS" not in environ:
        return TaskLayout()
    tasks = int(environ["SLURM_NTASKS"])
    if tasks % allocated == 0:
        return TaskLayout(tasks // allocated)
    if tasks % wanted == 0:
        return TaskLayout(tasks // wanted)
    raise HpctlError(
        f"{tasks} tasks do not spread evenly over {allocated} nodes, nor over {wanted}",
        "Say how many a node has: #SBATCH --ntasks-per-node=N, or -- --ntasks-per-node=N ...",
    )


def step_arguments(
    srun: SrunCommand, layout: TaskLayout, nodes: Sequence[NodeName], *, overlap: bool
) -> list[str]:
    """The arguments of `srun` for one step on just these nodes.

    `overlap` lets it start beside an old step that Slurm still holds because one of its nodes
    does not answer. srun is told not to end the step when a rank ends badly, because the
    supervisor does: a step that is once being terminated gets SIGTERM and then KillWait (30 s),
    and no SIGKILL shortens that (seen on 22.05).
    """
    place = ["--kill-on-bad-exit=0", f"--nodes={len(nodes)}", f"--nodelist={fold(nodes)}"]
    if layout.tasks_per_node is not None:
        place.append(f"--ntasks={len(nodes) * layout.tasks_per_node}")
        place.append(f"--ntasks-per-node={layout.tasks_per_node}")
    if overlap:
        place.append("--overlap")
    return [*srun.options, *place, *srun.command]


def step_environment(
    environ: Mapping[str, str], nodes: Sequence[NodeName], allocated: Sequence[NodeName]
) -> dict[str, str]:
    """What srun is started with: ours, less what the batch script's start left in it.

    Those variables are options to srun (SLURM_NNODES is -N) and go stale when a node is lost.
    A MASTER_ADDR that names another node of the allocation is the old rendezvous: it moves.
    """
    env = {name: value for name, value in environ.items() if name not in _SHAPE}
    master = env.get("MASTER_ADDR", "")
    if master in allocated and master not in nodes:
        env["MASTER_ADDR"] = str(nodes[0])
    return env


def with_step_nodes(srun: SrunCommand, nodes: Sequence[NodeName]) -> SrunCommand:
    """The same with a command that sees the step's nodes and no others.

    srun gives the ranks the allocation's list, spares and lost nodes included, in one variable
    or the other depending on the release, and frameworks take its first entry for rank 0's host.
    """
    if srun.multi_prog:
        return srun
    names = fold(nodes)
    variables = [f"{name}={names}" for name in ("SLURM_NODELIST", "SLURM_JOB_NODELIST")]
    variables += [f"{name}={len(nodes)}" for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")]
    return SrunCommand(srun.options, srun.given, ("/usr/bin/env", *variables, *srun.command))
