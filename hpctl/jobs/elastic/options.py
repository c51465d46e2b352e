"""The launcher's command line: torchrun's options where it has them, and what the ranks run."""

import argparse
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from hpctl.jobs.elastic import RESULT, SECRET
from hpctl.jobs.elastic.group import RankGroupTimeouts, RankRestartLimits
from hpctl.slurm.node_address import find_node_address
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.hostlist import HostlistError, expand_hostlist

_PYTHON = re.compile(r"(?:.*/)?python(?:\d+(?:\.\d+)?)?\Z")


class RankProgram(Struct, frozen=True):
    """`argv` starts a rank. `script` is the Python file that it runs, empty for anything else."""

    argv: tuple[str, ...]
    script: str = ""

    def check(self) -> None:
        """Raise FileNotFoundError where the script does not exist. Python itself would report that
        only by exit code 2."""
        if self.script:
            Path(self.script).stat()


def parse_rank_command(command: Sequence[str]) -> RankProgram:
    """Read the command as torchrun does (`script.py ...`, `-m module ...`), or as a whole command.

    Raises HpctlError where there are none.
    """
    if not command:
        raise HpctlError(
            "the command line names no training script",
            "Write it after `--`: hpctl run ... -- train.py",
        )
    if command[0].endswith(".py") or command[0] == "-m":
        return _parse_python_command(find_default_python_interpreter(), tuple(command))
    if _PYTHON.match(command[0]):
        rest = tuple(command[1:])
        if rest[:1] == ("-u",):
            rest = rest[1:]
        if rest and (rest[0] == "-m" or not rest[0].startswith("-")):
            return _parse_python_command(command[0], rest)
    return RankProgram(tuple(command))


IN_PROCESS = str(Path(__file__).with_name("in_process.py"))


def make_in_process_restart_program(found: RankProgram) -> RankProgram:
    """Return the same Python program, begun again within its process. Raises HpctlError for any
    other."""
    if found.argv[1:2] != ("-u",):
        raise HpctlError(
            "--in-process can start only a Python program",
            "Write `script.py ...` or `-m module ...` after `--`.",
        )
    interpreter, _, *rest = found.argv
    return RankProgram((interpreter, "-u", IN_PROCESS, *rest), found.script)


def _parse_python_command(interpreter: str, rest: tuple[str, ...]) -> RankProgram:
    if rest == ("-m",):
        raise HpctlError(
            "the option -m has no module's name", "Write the name of a Python module after -m."
        )
    return RankProgram((interpreter, "-u", *rest), "" if rest[0] == "-m" else rest[0])


def find_default_python_interpreter() -> str:
    """Return the interpreter that has torch: our own if it does, else the first `python` on PATH.

    hpctl may be installed in a separate environment; the user's is the activated one.
    """
    if find_spec("torch") is not None:
        return sys.executable
    return shutil.which("python") or shutil.which("python3") or sys.executable


LEAST_SILENCE_S = 0.5


class LauncherOptions(Struct, frozen=True):
    """What was asked for: `nproc` ranks on this node, `grace_s` from SIGTERM to SIGKILL."""

    program: RankProgram
    nproc: int
    limits: RankRestartLimits
    timing: RankGroupTimeouts
    grace_s: float
    result: Path | None


def parse_launcher_options(
    arguments: Sequence[str], environment: Mapping[str, str]
) -> LauncherOptions:
    """Read the command line. Raises HpctlError; ends the process for --help and bad options."""
    parsed = _build_launcher_option_parser().parse_args(arguments)
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    codes = frozenset(int(code) for code in parsed.final_exit_codes.split(",") if code)
    result = environment.get(RESULT, "")
    found = parse_rank_command(command)
    return LauncherOptions(
        program=make_in_process_restart_program(found) if parsed.in_process else found,
        nproc=_parse_rank_count(parsed.nproc_per_node, environment),
        limits=RankRestartLimits(parsed.max_restarts, final_exit_codes=codes),
        timing=RankGroupTimeouts(silence_s=parsed.silence),
        grace_s=parsed.grace,
        result=Path(result) if result else None,
    )


def _parse_rank_count(text: str, environment: Mapping[str, str]) -> int:
    """Parse a count of ranks; `auto`: as many as the step has GPUs on this node, else one."""
    if text not in ("auto", "gpu"):
        if not text.isdigit() or int(text) < 1:
            raise HpctlError(
                f"--nproc-per-node {text} is not a number of processes",
                "Write a number from 1 on, or auto.",
            )
        return int(text)
    count = environment.get("SLURM_GPUS_ON_NODE", "")
    if count.isdigit() and int(count):
        return int(count)
    devices = [each for each in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    return max(1, len(devices))


def _build_launcher_option_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m hpctl.jobs.elastic",
        usage="%(prog)s [options] -- script.py [args] | -m module [args] | command [args]",
        description="Start this node's ranks and restart the whole group when one dies.",
        epilog="docs/run.md",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--nproc-per-node", "--nproc_per_node", default="auto", metavar="N|auto",
        help="ranks on this node (auto: as many as GPUs)")  # fmt: skip
    add(
        "--max-restarts",
        "--max_restarts",
        type=_make_number_option_parser(int, 0),
        default=3,
        metavar="K",
        help="restarts within an hour before giving up (3)",
    )
    add("--final-exit-codes", default="93,16,17", metavar="LIST",
        help="a rank's exit codes that end the group at once (93,16,17)")  # fmt: skip
    add("--grace", type=_make_number_option_parser(float, 0), default=2.0, metavar="S",
        help="from SIGTERM to SIGKILL before a restart (2)")  # fmt: skip
    add(
        "--silence",
        type=_make_number_option_parser(float, LEAST_SILENCE_S),
        default=15.0,
        metavar="S",
        help="a launcher that says nothing for so long is gone (15)",
    )
    add("--in-process", action="store_true",
        help="after an exception keep the processes (nvidia-resiliency-ext)")  # fmt: skip
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _make_number_option_parser(
    kind: Callable[[str], float], least: float
) -> Callable[[str], float]:
    def parse_number(text: str) -> float:
        value = kind(text)
        if not least <= value < float("inf"):
            raise argparse.ArgumentTypeError(f"must be at least {least:g}")
        return value

    return parse_number


LEAST_SECRET = 16


class LauncherLocation(Struct, frozen=True):
    """`node` is the group rank, `address` where the first launcher and rank 0 are found."""

    node: int
    nodes: int
    host: str
    address: str
    run_id: str
    secret: str


def read_launcher_location(environment: Mapping[str, str]) -> LauncherLocation:
    """Read the place from the step's SLURM_* variables; a single node without them. Raise
    HpctlError."""
    get = environment.get
    try:
        count = int(get("SLURM_STEP_NUM_NODES") or get("SLURM_NNODES") or 1)
        mine = int(get("SLURM_PROCID", "0"))
        tasks = int(get("SLURM_STEP_NUM_TASKS") or get("SLURM_NTASKS") or count)
        names = expand_hostlist(get("SLURM_STEP_NODELIST") or get("SLURM_JOB_NODELIST") or "")
    except (ValueError, HostlistError) as error:
        raise HpctlError(
            f"cannot read the step's nodes and tasks from Slurm's environment variables: {error}",
            "Start the launcher with srun, in a Slurm job.",
        ) from error
    if tasks != count:
        raise HpctlError(
            f"this job step has {tasks} tasks on {count} nodes, but the launcher must run once on "
            "each node",
            "Start it with `srun --ntasks-per-node=1`: the launcher starts the ranks.",
        )
    if not 0 <= mine < count:
        raise HpctlError(
            f"this node's rank in the job step is {mine}, but the step has only {count} nodes",
            "Start the launcher with srun, and do not set SLURM_NODEID.",
        )
    return LauncherLocation(
        node=mine,
        nodes=count,
        host=get("SLURMD_NODENAME") or socket.gethostname(),
        address=_find_first_step_node_address(names, count),
        run_id=f"{job}.{get('SLURM_STEP_ID', '')}" if (job := get("SLURM_JOB_ID")) else "alone",
        secret=_choose_rank_group_secret(get(SECRET, ""), count),
    )


def _find_first_step_node_address(names: tuple[str, ...], count: int) -> str:
    if names:
        return find_node_address(names[0])
    if count > 1:
        raise HpctlError(
            "SLURM_STEP_NODELIST does not name the first node of the job step",
            "Start the launcher with srun.",
        )
    return "127.0.0.1"


def _choose_rank_group_secret(text: str, count: int) -> str:
    if not text and count == 1:
        return secrets.token_hex(16)
    if len(text) < LEAST_SECRET or not text.isascii():
        raise HpctlError(
            f"{SECRET} (the ranks' shared secret) must have at least {LEAST_SECRET} characters",
            f"Run before srun: export {SECRET}=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')",
        )
    return text
