"""srun: its command line, a step's own options in it, its start, and what it says of tasks.

Later options win in srun, so what the supervisor must decide (-N, -w) is placed after the user's
options and before the command. The table is src/common/slurm_opt.c's for srun (22.05 to 25.11).

srun's exit code is the highest of all tasks' and its own: with one rank that asks with 93 not to be
run again and the others ended for it, it is 143. Its lines show which task ended how, in the order
in which srun learned of it. They are the job's hints about itself: a rank that prints such a line
harms its own job only. Node losses are asked of the controller, never read here.

This is the one place of the supervisor that starts processes: srun, scancel, scontrol,
notifications. srun inherits the job's own stdout and stderr where they are files: nothing of ours
is then between the ranks and their log, so nothing of ours can block them.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from hpctl.jobs.run.save_request import MODULE, parse_count_of_signaled_processes
from hpctl.jobs.sbatch.options import SHARED_SHORT, SHARED_VALUED, split_sbatch_option_names
from hpctl.slurm.run import CommandEndKind, CommandResult, SlurmCommandRunner
from hpctl.slurm.step_beside import make_overlapping_step_options
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.vocabulary.identity import JobId, NodeName

_VALUED = SHARED_VALUED + split_sbatch_option_names("""
    accel-bind bcast-exclude cpu-bind epilog het-group jobid max-exit-timeout max-threads mpi
    msg-timeout prolog relative slurmd-debug task-epilog task-prolog threads treewidth wait
""")


_SHORT = SHARED_SHORT | {"T": "threads", "r": "relative"}


_ATTACHED = {"I": "immediate", "K": "kill-on-bad-exit", "k": "no-kill"}
"""Their optional value is whatever is attached."""


_PLACES = ("nodelist", "exclude", "relative", "nodefile", "jobid", "het-group")


class SrunCommand(Struct, frozen=True):
    """The words after `--`: srun's options as typed, what they mean, and the command."""

    options: tuple[str, ...]
    given: Mapping[str, str]
    command: tuple[str, ...]

    @property
    def should_continue_on_bad_exit(self) -> bool:
        """Return whether the user wants the step to continue when a rank ends badly:
        --kill-on-bad-exit=0."""
        return self.given.get("kill-on-bad-exit") == "0"

    @property
    def is_multi_prog_command(self) -> bool:
        """Return whether the command is a file that names several programs: nothing may precede
        it."""
        return "multi-prog" in self.given


def parse_srun_command(arguments: Sequence[str]) -> SrunCommand:
    """Split srun's arguments. Raises HpctlError where there is no command, or where the options
    pin the step to nodes, which is what the supervisor decides."""
    left, options, given = list(arguments), [], {}
    while left and left[0].startswith("-") and left[0] != "-":
        argument = left.pop(0)
        if argument == "--":
            break
        options.append(argument)
        name, value = _split_srun_option(argument)
        if value is None:
            value = left.pop(0) if left else ""
            options.append(value)
        given[name] = value
    if not left:
        raise HpctlError(
            "hpctl run was started without a command to run",
            "Write: hpctl run [options] -- [srun options] command",
        )
    pinned = [name for name in _PLACES if name in given]
    if pinned:
        raise HpctlError(
            f"--{pinned[0]} pins the step to nodes, but hpctl run chooses the nodes at each start",
            "Remove the option; give the numbers of nodes with --nodes and --spares.",
        )
    return SrunCommand(tuple(options), given, tuple(left))


def _split_srun_option(word: str) -> tuple[str, str | None]:
    """Return an option's long name and value; None: the next word is the value."""
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


def find_tasks_per_node(
    srun: SrunCommand, environ: Mapping[str, str], allocated: int, wanted: int
) -> int | None:
    """Return the tasks a node of a step, where the batch script's own options speak of the whole
    allocation; None: as the user's own options say.

    `sbatch -N 5 -n 40` with a spare means 40 tasks on 5 nodes: 8 a node, 32 in a step of 4.
    Raises HpctlError where that does not come out even.
    """
    if {"ntasks", "ntasks-per-node", "tasks-per-node", "ntasks-per-gpu"} & set(srun.given):
        return None
    if environ.get("SLURM_NTASKS_PER_NODE") or "SLURM_NTASKS" not in environ:
        return None
    tasks = int(environ["SLURM_NTASKS"])
    if tasks % allocated == 0:
        return tasks // allocated
    if tasks % wanted == 0:
        return tasks // wanted
    raise HpctlError(
        f"cannot place the step's {tasks} tasks: they do not divide evenly over the {allocated} "
        f"allocated nodes or the {wanted} of the step",
        "Set the number of tasks on each node: #SBATCH --ntasks-per-node=N, or hpctl run ... -- "
        "--ntasks-per-node=N ...",
    )


def build_step_arguments(
    srun: SrunCommand, tasks_per_node: int | None, nodes: Sequence[NodeName], *, overlap: bool
) -> list[str]:
    """Return the arguments of `srun` for one step on just these nodes.

    `overlap` lets it start together with an old step that Slurm still holds because one of its
    nodes does not answer. srun is configured not to end the step when a rank ends badly, because
    the supervisor does: a step that is once being terminated gets SIGTERM and then KillWait (30 s),
    and no SIGKILL shortens that (seen on 22.05).
    """
    place = ["--kill-on-bad-exit=0", f"--nodes={len(nodes)}", f"--nodelist={fold_hostlist(nodes)}"]
    if tasks_per_node is not None:
        place.append(f"--ntasks={len(nodes) * tasks_per_node}")
        place.append(f"--ntasks-per-node={tasks_per_node}")
    if overlap:
        place.append("--overlap")
    return [*srun.options, *place, *srun.command]


def restrict_srun_to_step_nodes(srun: SrunCommand, nodes: Sequence[NodeName]) -> SrunCommand:
    """Return the same with a command that sees the step's nodes and no others.

    srun gives the ranks the allocation's list, spares and lost nodes included, in one variable
    or the other depending on the release, and frameworks take its first entry for rank 0's host.
    """
    if srun.is_multi_prog_command:
        return srun
    names = fold_hostlist(nodes)
    variables = [f"{name}={names}" for name in ("SLURM_NODELIST", "SLURM_JOB_NODELIST")]
    variables += [f"{name}={len(nodes)}" for name in ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")]
    return SrunCommand(srun.options, srun.given, ("/usr/bin/env", *variables, *srun.command))


_TASKS = re.compile(rb"^srun: error: (\S+): tasks? ([\d,\[\]-]+): (.+)$", re.MULTILINE)


_LAUNCH = re.compile(
    rb"^srun: error: Task launch for (?:StepId=)?\S+ failed on node (\S+): (.+)$", re.MULTILINE
)


_CREATE = re.compile(rb"^srun: error: Unable to create step for job \S+ (.+)$", re.MULTILINE)


_CODE = re.compile(r"Exited with exit code (\d+)")


# strsignal(3) in the C locale, and what srun says of a task that the memory limit ended.
_SIGNALS = {signal.strsignal(number): 128 + number for number in signal.valid_signals()}


class SrunTaskEnd(Struct, frozen=True):
    """Tasks of one node that ended badly. `code` is the shell's; `rank` the lowest of them, `spans`
    all of them as first and last rank of each row."""

    node: NodeName
    rank: int
    code: int
    text: str
    spans: tuple[tuple[int, int], ...] = ()


class SrunLaunchFailure(Struct, frozen=True):
    """srun could not start tasks on a node (`node`), or the step at all (None)."""

    node: NodeName | None
    text: str


SrunLine = SrunTaskEnd | SrunLaunchFailure


def parse_srun_lines(block: bytes) -> Iterator[SrunLine]:
    """Return srun's lines among whole lines of output, in their order."""
    found: list[tuple[int, SrunLine]] = []
    for match in _TASKS.finditer(block):
        text = match[3].decode("utf-8", "replace").strip()
        first = re.search(rb"\d+", match[2])
        rank = int(first[0]) if first else 0
        end = SrunTaskEnd(
            _decode_node_name(match[1]),
            rank,
            _parse_srun_exit_code(text),
            text,
            _parse_rank_ranges(match[2]),
        )
        found.append((match.start(), end))
    for match in _LAUNCH.finditer(block):
        text = match[2].decode("utf-8", "replace").strip()
        found.append((match.start(), SrunLaunchFailure(_decode_node_name(match[1]), text)))
    for match in _CREATE.finditer(block):
        text = match[1].decode("utf-8", "replace").strip()
        found.append((match.start(), SrunLaunchFailure(None, text)))
    return iter([line for _, line in sorted(found, key=lambda each: each[0])])


def find_failed_rank_node(rank: int, ends: Sequence[SrunTaskEnd]) -> NodeName | None:
    """Return the node on which srun reported the end of a rank; None where it reported none."""
    for end in ends:
        if any(first <= rank <= last for first, last in end.spans):
            return end.node
    return None


def _parse_rank_ranges(listed: bytes) -> tuple[tuple[int, int], ...]:
    """Return the rows of `[0-3,8]` or `5`."""
    rows = re.findall(rb"(\d{1,9})(?:-(\d{1,9}))?", listed[:4096])
    return tuple((int(first), int(last or first)) for first, last in rows)


def find_root_cause_task_end(
    ends: Sequence[SrunTaskEnd], final: Sequence[int], corruption: Sequence[int]
) -> SrunTaskEnd | None:
    """Return the end that explains the others: one with a code that says something, else the first.

    Two ranks may end within a millisecond: the one that asks not to be run again, or saw wrong
    data, knows more than the one that lost its peer.
    """
    for codes in (final, corruption):
        for end in ends:
            if end.code in codes:
                return end
    return ends[0] if ends else None


def _parse_srun_exit_code(text: str) -> int:
    match = _CODE.search(text)
    if match:
        return int(match[1])
    plain = text.removesuffix(" (core dumped)")
    if "Out Of Memory" in text:
        return 128 + signal.SIGKILL
    return _SIGNALS.get(plain, 1)


def _decode_node_name(raw: bytes) -> NodeName:
    return NodeName(raw.decode("utf-8", "replace"))


SCANCEL_S = 15.0
"""scancel connects to each node itself and waits 10 s for one that is frozen."""


SAVE_S = 30.0
"""How long a step's nodes may take to ask its processes to save."""


NOTIFY_S = 60.0


ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
"""Signals that ask a program to end."""


_STEP = re.compile(
    r"^StepId=(\S+) (?:.*?\bState=(\S+) )?.*\bSrunHost:Pid=[^:\s]*:(\d+)", re.MULTILINE
)


class RunningStep(Struct, frozen=True):
    """One running srun. `began` is by the monotonic clock."""

    attempt: int
    nodes: tuple[NodeName, ...]
    process: subprocess.Popen[bytes]
    began: float


class StepLauncher:
    """The launcher of the steps of one job. Only `start` raises."""

    def __init__(self, job: JobId, bin_dir: Path | None = None) -> None:
        self.job = job
        self.runner = SlurmCommandRunner(bin_dir=bin_dir)
        self._srun = str(bin_dir / "srun") if bin_dir else "srun"
        if shutil.which(self._srun) is None:
            raise HpctlError(
                f"no {self._srun}", "Name Slurm's bin directory with --slurm-bin, or set PATH."
            )

    def start(  # noqa: PLR0913 -- what a process is started with
        self,
        attempt: int,
        nodes: Sequence[NodeName],
        arguments: Sequence[str],
        env: Mapping[str, str],
        sinks: tuple[int, int],
        ended: Callable[[RunningStep, int], None],
    ) -> RunningStep:
        """Start srun; `ended(step, code)` is called once, from a thread, with the shell's code.

        `sinks` are the descriptors of its stdout and stderr. Raises HpctlError.
        """
        try:
            process = subprocess.Popen(
                [self._srun, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=sinks[0],
                stderr=sinks[1],
                env=dict(env),
            )
        except OSError as error:
            raise HpctlError(
                f"cannot start the program {self._srun}: {error.strerror}",
                "Check that Slurm's srun is installed on this node and is on PATH.",
            ) from error
        step = RunningStep(attempt, tuple(nodes), process, time.monotonic())

        def wait_for_srun() -> None:
            code = process.wait()
            ended(step, code if code >= 0 else 128 - code)

        threading.Thread(target=wait_for_srun, name=f"srun {attempt}", daemon=True).start()
        return step

    def signal(self, step: RunningStep, number: int) -> None:
        """Pass a signal on to the ranks.

        srun forwards SIGUSR1 and the like. Those that ask a program to end it takes for itself:
        SIGINT prints a status, SIGTERM ends the step before the ranks can do anything about it.
        """
        if number in ENDING:
            self._run_scancel(step, signal.Signals(number).name.removeprefix("SIG"))
            return
        with contextlib.suppress(ProcessLookupError):
            step.process.send_signal(number)

    def request_checkpoint_save(
        self, step: RunningStep, number: int, answered: Callable[[int | None, str], None]
    ) -> None:
        """Send a signal to those processes of the ranks that handle it. Returns at once.

        `answered` is called from a thread: how many were asked, or None and why that is unknown.
        """

        def run_save_request() -> None:
            step_id = find_step_id(self._list_job_steps(), step.process.pid)
            if step_id is None:
                answered(None, "Slurm has no such step")
                return
            own = step_id.partition(".")[2].partition("+")[0]
            ran = self.runner.run(
                self._srun,
                *make_overlapping_step_options(int(self.job), step.nodes, "hpctl-save"),
                sys.executable,
                *SAFE_PATH,
                MODULE,
                str(number),
                own,
                timeout=SAVE_S,
            )
            answered(parse_count_of_signaled_processes(ran.text), ran.message[-200:])

        threading.Thread(target=run_save_request, name="save request", daemon=True).start()

    def kill(self, step: RunningStep) -> None:
        """Send SIGKILL to all ranks, without Slurm's KillWait. Returns at once."""
        self._run_scancel(step, "KILL")

    def answering(self, nodes: Sequence[NodeName], seconds: float) -> set[NodeName] | None:
        """Return those of these nodes on which a task starts in so many seconds; None: not known.

        A frozen node starts none. One that is only busy giving back its old ranks' memory does.
        """
        ran = self.runner.run(
            "srun", f"--jobid={self.job}", "--overlap", "--mem=0", "--gres=none", "--mpi=none",
            f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", "--ntasks-per-node=1",
            "--kill-on-bad-exit=0", f"--nodelist={fold_hostlist(nodes)}",
            "/bin/sh", "-c", "echo $SLURMD_NODENAME", timeout=seconds,
        )  # fmt: skip
        heard = {NodeName(word) for word in ran.text.split()} & set(nodes)
        return heard if heard or ran.end is CommandEndKind.TIMED_OUT else None

    def kill_srun_of_step(self, step: RunningStep) -> None:
        """End srun itself: it would wait forever for the tasks of a node that is gone."""
        with contextlib.suppress(ProcessLookupError):
            step.process.kill()

    def is_step_blocked(self, step: RunningStep, before: Collection[int]) -> bool:
        """Return whether slurmctld holds a step back for one of those `before` (process ids of
        sruns), which have ended: it was away at that moment."""
        return is_step_blocked_by_earlier_step(self._list_job_steps(), step.process.pid, before)

    def cancel_uncreated_step(self, step: RunningStep) -> None:
        """Have srun give up a step that was not created yet."""
        with contextlib.suppress(ProcessLookupError):
            step.process.terminate()

    def scontrol(self, *arguments: str) -> CommandResult:
        """Run one scontrol command. A requeue of this job ends its run, and with it this
        process."""
        return self.runner.run("scontrol", *arguments)

    def notify(self, command: Sequence[str], document: bytes) -> None:
        """Run the policy's command with a JSON document on its stdin. Returns at once."""

        def run_notify_command() -> None:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    list(command), input=document, timeout=NOTIFY_S, check=False,
                    stdout=subprocess.DEVNULL, env=dict(os.environ),
                )  # fmt: skip

        threading.Thread(target=run_notify_command, name="notify", daemon=True).start()

    def _run_scancel(self, step: RunningStep, name: str) -> None:
        def cancel_step() -> None:
            step_id = find_step_id(self._list_job_steps(), step.process.pid)
            if step_id is None:
                # Not created yet, so srun is all there is of it; or gone, and so will srun be.
                self.kill_srun_of_step(step)
                return
            self.runner.run("scancel", f"--signal={name}", step_id, timeout=SCANCEL_S)

        threading.Thread(target=cancel_step, name=f"scancel {name}", daemon=True).start()

    def _list_job_steps(self) -> str:
        return self.scontrol("-o", "show", "step", str(self.job)).text


def find_step_id(text: str, pid: int) -> str | None:
    """Return the StepId of the srun `pid` in `scontrol -o show step`."""
    return next((match[1] for match in _STEP.finditer(text) if int(match[3]) == pid), None)


def is_step_blocked_by_earlier_step(text: str, pid: int, before: Collection[int]) -> bool:
    """Return whether the step of srun `pid` is pending while one of those `before` is still
    listed."""
    states = {int(match[3]): match[2] for match in _STEP.finditer(text)}
    return states.get(pid) == "PENDING" and any(each in states for each in before)
