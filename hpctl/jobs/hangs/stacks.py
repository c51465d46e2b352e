"""The stacks of a job's ranks: read on each node by py-spy, gathered by one srun.

`python -m hpctl.jobs.hangs.stacks` on a node finds the job's Python ranks by their environment and
owner, reads each within bounds, and prints what it saw in lines
(`hpctl.jobs.hangs.stack_groups.format_node_stacks`). The first look reads a rank's memory and stops
no process. The second one, for the C++ calls below Python's, stops the rank for as long as
unwinding takes, and is left out where it cannot end well.

`collect_job_stacks` runs that beside the job's own steps, on CPUs and GPUs that they use:
--overlap.
"""

import argparse
import json
import os
import pwd
import re
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpctl.checkpoints.fast.spec import HELPER
from hpctl.jobs.hangs.ras_report import (
    RasJsonUnsupportedError,
    parse_ras_address,
    query_ras_service,
)
from hpctl.jobs.hangs.stack_groups import (
    MOST_FRAMES,
    MOST_RANKS,
    NodeStacks,
    RankStack,
    StackFrame,
    StackHangVerdict,
    diagnose_hang_from_rank_stacks,
    format_node_stacks,
    is_waiting_for_other_thread,
    parse_node_stacks,
)
from hpctl.jobs.job_processes import (
    PROC,
    JobProcess,
    is_same_cluster_process,
    list_process_ids,
    read_job_process,
)
from hpctl.slurm.run import CommandEndKind, SlurmCommandRunner
from hpctl.slurm.step_beside import make_overlapping_step_options
from hpctl.toolkit.bounds import make_printable, parse_count
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.run_within import run_program_with_timeout
from hpctl.toolkit.user_files import find_user_file_mtime, open_user_file

DUMP_S, NATIVE_S, RAS_S = 5.0, 10.0, 12.0
"""How long a look at one rank, one at its native calls, and NCCL's answer may take, in seconds."""
NODE_S, EXPLAIN_S = 60.0, 30.0
"""How long all nodes together may take, by hand and while a run waits to be restarted, in s."""
LARGEST_DUMP = 8 << 20
CLOCKS_S = 5.0
"""Seconds by which a file server's clock may be behind this node's."""
AT_ONCE = 4
_PTRACE = re.compile(r"(?i)permission denied|operation not permitted|EPERM")
_HOW_TO_PERMIT = (
    "not permitted to read the ranks' memory: as root on each node,"
    " `sysctl kernel.yama.ptrace_scope=0` (in a container: the capability SYS_PTRACE)"
)
_NO_PY_SPY = "py-spy is not installed on the node: pip install 'hpctl[stacks]' beside hpctl there"


_FUTURE = re.compile(r"concurrent/futures/_base\.py:(?:Future\.)?result\Z")
"""The call in which a thread waits for a future, as `file:function`."""
_POOL = re.compile(r"concurrent/futures/thread\.py:")
"""Calls of a thread of a pool (ThreadPoolExecutor), as `file:function`."""
_GLUE = ("0x", "pybind11::")
"""How the frames begin between Python and native code, which name no place of the program."""


def find_rank_processes(
    job: str, uid: int | None, node: str, own_step: str
) -> dict[tuple[str, int], JobProcess]:
    """Return the process of each rank on this node, by its step and number: the first Python of its
    line of descent, so that neither a shell around it nor its own workers are taken for it. The
    supervisor of a run has the variables of the batch script's task 0, and is no rank."""
    processes = [
        one for pid in list_process_ids() if (one := read_job_process(pid, uid, job)) and one.python
    ]
    mine = [one for one in processes if _can_be_rank_process(one, node, own_step)]
    # A launcher inside a step numbers its ranks by RANK, and is itself none.
    name = "RANK" if any("RANK" in one.env for one in mine) else "SLURM_PROCID"
    if name != "RANK" and any("SLURM_STEP_ID" in one.env for one in mine):
        mine = [one for one in mine if "SLURM_STEP_ID" in one.env]
    key_of = {}
    for one in mine:
        rank = one.env.get(name, "")
        if rank.isascii() and rank.isdecimal() and len(rank) < 7:
            key_of[one.pid] = (one.env.get("SLURM_STEP_ID", ""), int(rank))
    found: dict[tuple[str, int], JobProcess] = {}
    for one in mine:
        key = key_of.get(one.pid)
        if key is not None and key_of.get(one.parent) != key and key not in found:
            found[key] = one
    return dict(list(found.items())[:MOST_RANKS])


class _ProcessStack(Struct, frozen=True):
    """What py-spy shows of a process: the frames of its main thread, innermost first, and the
    thread of the innermost one; or no frames, and why."""

    frames: tuple[StackFrame, ...] = ()
    thread: int = 0
    error: str = ""


def _read_process_stack(pid: int, limit_s: float, *how: str) -> _ProcessStack:
    """Return what a process does. Raises nothing: a full disk under /tmp, too few descriptors or a
    missing program is the reason for one rank."""
    program = Path(sys.executable).with_name("py-spy")
    spy = str(program) if program.exists() else shutil.which("py-spy")
    if spy is None:
        return _ProcessStack(error=_NO_PY_SPY)
    command = ["prlimit", f"--fsize={LARGEST_DUMP}", spy, "dump", "--json", *how, f"--pid={pid}"]
    try:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
            exit_code = run_program_with_timeout(command, limit_s, out=out, error=said)
            out.seek(0)
            said.seek(0)
            dump, text = out.read(), said.read(LARGEST_DUMP)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        return _ProcessStack(error=f"cannot run py-spy: {error.strerror}{where}")
    if exit_code is None:
        return _ProcessStack(error=f"py-spy did not end within {limit_s:g} s")
    if exit_code:
        why = text.decode(errors="replace").strip()
        return _ProcessStack(
            error=_HOW_TO_PERMIT if _PTRACE.search(why) else f"py-spy: {why[-200:]}"
        )
    try:
        return _select_main_thread_frames(json.loads(dump))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return _ProcessStack(error="py-spy's answer cannot be read")


def _select_main_thread_frames(threads: list[dict[str, Any]]) -> _ProcessStack:
    """Return the frames of the main thread, preceded by what other threads do for it: autograd's,
    or the one that works for a future which it waits for, as of a checkpoint that is saved in the
    background."""
    main = next((t for t in threads if t["os_thread_id"] == t["pid"]), threads[0])
    stack, thread = _parse_thread_stack(main), 0
    inner = next((frame for frame in stack if frame.line), None)
    if inner is not None and inner.function == "_engine_run_backward":
        others = [t for t in threads if not str(t["thread_name"] or "Dummy").find("Dummy")]
        stack = max(map(_parse_thread_stack, others), key=len, default=[]) + stack
    elif any(_FUTURE.match(f"{frame.file}:{frame.function}") for frame in stack):
        works = {int(t["os_thread_id"]): _parse_thread_stack(t) for t in threads if t is not main}
        busy = [one for one, frames in works.items() if _is_pool_thread_running_task(frames)]
        if len(busy) == 1:
            thread = busy[0]
            stack = works[thread] + stack
    return _ProcessStack(tuple(stack[:MOST_FRAMES]), thread)


def _is_pool_thread_running_task(frames: Sequence[StackFrame]) -> bool:
    """Return whether a thread of a pool runs a task, and does not wait for one."""
    pooled = any(_POOL.match(f"{frame.file}:{frame.function}") for frame in frames)
    return pooled and not is_waiting_for_other_thread(
        next((frame for frame in frames if frame.line), frames[0])
    )


def _can_be_rank_process(one: JobProcess, node: str, own_step: str) -> bool:
    """Return whether a process may be a rank: of this cluster and node, of another step than the
    reader's own, and neither a helper nor a supervisor."""
    if HELPER in one.env or one.is_hpctl_command or not is_same_cluster_process(one.env):
        return False
    if own_step and one.env.get("SLURM_STEP_ID", "") == own_step:
        return False
    return one.env.get("SLURMD_NODENAME", node) == node and one.pid != os.getpid()


def _parse_thread_stack(thread: dict[str, object]) -> list[StackFrame]:
    frames = thread["frames"]
    assert isinstance(frames, list)
    own = (f for f in frames[: 2 * MOST_FRAMES] if not str(f["name"]).startswith(_GLUE))
    return list(map(_parse_stack_frame, own))


def _parse_stack_frame(frame: dict[str, Any]) -> StackFrame:
    name, line = str(frame["name"])[:120], int(frame["line"])
    file = str(frame["short_filename"] or frame["filename"])[-160:]
    library = re.search(r"/(site|dist)-packages/|/lib/python3|^<", frame["filename"])
    return StackFrame(name, file, line, bool(line) and not library)


def _read_rank_stack(native: bool, item: tuple[tuple[str, int], JobProcess]) -> RankStack:
    """Read one rank, twice where that does no harm: a process that the kernel holds, or that is
    stopped already, would take the signal that stops it later, and nothing would continue it."""
    (step, rank), process = item
    first = _read_process_stack(process.pid, DUMP_S, "--nonblocking")
    thread = f"{process.pid}/task/{first.thread}" if first.thread else str(process.pid)
    # The second look stops the threads, which then wake up: what they sleep in is read before it.
    wchan, state = _read_kernel_wait_channel(thread), process.state
    if first.thread and state in "RS":
        state = _read_thread_state(thread) or state
    frames = first.frames
    if frames and native and process.state in "RS":
        second = _read_process_stack(process.pid, NATIVE_S, "--native")
        if "did not end" in second.error:
            os.kill(process.pid, signal.SIGCONT)
        # Where it went on meanwhile, the first look tells what it did without us.
        python = [frame for frame in second.frames if frame.line]
        same = second.thread == first.thread and python and python[-1] == frames[-1]
        frames = second.frames if same else frames
    return RankStack(
        rank,
        process.pid,
        step,
        state,
        wchan,
        frames,
        first.error[:300],
        _list_stopped_child_processes(process.pid),
        request_flight_recorder_dump(process, rank),
    )


def _read_thread_state(thread: str) -> str:
    """Return the kernel's letter for a thread; empty where it cannot be read."""
    try:
        fields = (PROC / thread / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return fields[0] if fields else ""


def _read_kernel_wait_channel(thread: str) -> str:
    try:
        return (PROC / thread / "wchan").read_text(errors="replace")[:60]
    except OSError:
        return ""


def _list_stopped_child_processes(pid: int) -> tuple[str, ...]:
    """Return a rank's own processes that do nothing, as its data loader's: `12345 (stopped)`."""
    found = []
    try:
        children = (PROC / f"{pid}/task/{pid}/children").read_text().split()
    except OSError:
        children = []
    for child in children[:256]:
        try:
            state = (PROC / child / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        if state[0] in "ZTt":
            found.append(f"{child} ({'dead' if state[0] == 'Z' else 'stopped'})")
    return tuple(found[:8])


def request_flight_recorder_dump(process: JobProcess, rank: int) -> str:
    """Return the dump of torch's flight recorder, asked for where the job set a pipe for that;
    empty where there is none of this process.

    All jobs of a node dump to one name unless they set another (torch's default), so a file that is
    older than the process is another run's. An agent that runs as root reads these paths from the
    environment of a user's process.
    """
    env = process.env
    pipe = env.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "")
    if pipe:
        try:
            path = f"{pipe}{rank}.pipe"
            fd = open_user_file(path, os.O_WRONLY, process.owner, stat.S_ISFIFO)
            try:
                os.write(fd, b"1\n")
            finally:
                os.close(fd)
        except OSError:
            pass
    new, old = env.get("TORCH_FR_DUMP_TEMP_FILE"), env.get("TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
    dump = (new or old or "/tmp/nccl_trace_rank_") + str(rank)  # noqa: S108
    written = find_user_file_mtime(dump, process.owner)
    if written is None or written < process.started - CLOCKS_S:
        return ""
    return dump[:200]


def _query_nccl_ras_report_text(found: Mapping[tuple[str, int], JobProcess]) -> str:
    """What NCCL's RAS service says, on the node of the lowest rank alone: one answer is all's."""
    first = next((one for (_, rank), one in found.items() if rank == 0), None)
    if first is None:
        return ""
    try:
        where = parse_ras_address(first.env.get("NCCL_RAS_ADDR", ""))
        return query_ras_service(where, RAS_S, first.owner).text[:2000]
    except RasJsonUnsupportedError as error:
        return str(error)
    except HpctlError:
        return ""


def read_node_stacks(
    job: str, uid: int | None, node: str, own_step: str, *, native: bool
) -> NodeStacks:
    """Return what this node's ranks of the job do now. `uid`: of the job's owner, None: any user's.
    `native`: with the native calls too, and with what NCCL says. Raises nothing."""
    found = find_rank_processes(job, uid, node, own_step)
    world = "WORLD_SIZE" if any("RANK" in one.env for one in found.values()) else "SLURM_NTASKS"
    sizes = [parse_count(one.env.get(world, "")) for one in found.values()]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ras = pool.submit(_query_nccl_ras_report_text, found) if native else None
        stacks = tuple(pool.map(partial(_read_rank_stack, native), found.items()))
        text = ras.result() if ras else ""
    began = min((one.started for one in found.values()), default=0.0)
    return NodeStacks(node, max(sizes, default=0), stacks, ras=text, began=began)


def diagnose_hang_from_step_stacks(
    job: int, nodes: Sequence[str], bin_dir: Path | None
) -> StackHangVerdict:
    """Read the stacks of a step's ranks on these nodes and judge them. Takes EXPLAIN_S at most.
    Raises HpctlError."""
    return diagnose_hang_from_rank_stacks(
        collect_job_stacks(job, nodes, bin_dir=bin_dir, within_s=EXPLAIN_S), nodes, nodes
    )


def build_setpriv_command(uid: int | None) -> list[str]:
    """Return the command and options by which root becomes a job's owner; none for anyone else."""
    if uid is None or os.geteuid() != 0 or uid == 0:
        return []
    owner = pwd.getpwuid(uid)
    return ["setpriv", f"--reuid={uid}", f"--regid={owner.pw_gid}", "--init-groups"]


def collect_job_stacks(
    job: int,
    nodes: Sequence[str],
    *,
    uid: int | None = None,
    bin_dir: Path | None = None,
    within_s: float = NODE_S,
) -> list[NodeStacks]:
    """Read what the job's ranks on these nodes do now, without nodes that do not answer in time.

    Slurm lets only the job's owner add a step to it: root becomes `uid`. Raises HpctlError.
    """
    runner = SlurmCommandRunner(bin_dir=bin_dir)
    srun = str(bin_dir / "srun") if bin_dir else "srun"
    options = make_overlapping_step_options(job, nodes, "hpctl-stacks")
    command = [srun, *options, sys.executable, *SAFE_PATH, "hpctl.jobs.hangs.stacks"]
    command = [*build_setpriv_command(uid), *command]
    done = SlurmCommandRunner(environ=runner.env()).run(*command, timeout=within_s)
    answers = parse_node_stacks(done.text.splitlines())
    if not answers and done.end is not CommandEndKind.TIMED_OUT:
        raise HpctlError(
            "cannot collect stack traces: srun could not start on the job's nodes: "
            f"{done.message[-300:]}",
            _choose_stack_collection_error_hint(done.err),
        )
    return answers


def _choose_stack_collection_error_hint(text: str) -> str:
    if "ccess" in text and "denied" in text:
        return "Ask as the job's owner or as root."
    if "No module named" in text or "No such file" in text:
        return f"hpctl must be installed on the nodes at the same place: {sys.executable}"
    return "Does the job run? `squeue -j JOB` says."


def main() -> None:
    """Read the stacks on a node: as a task of srun (no arguments), or the agent's (`--job`,
    `--uid`, `--node`)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", default=os.environ.get("SLURM_JOB_ID", ""))
    parser.add_argument("--uid", type=int, default=os.geteuid())
    parser.add_argument("--node", default=os.environ.get("SLURMD_NODENAME", os.uname().nodename))
    parser.add_argument("--no-native", action="store_true")
    asked = parser.parse_args()
    own_step = os.environ.get("SLURM_STEP_ID", "")
    found = read_node_stacks(asked.job, asked.uid, asked.node, own_step, native=not asked.no_native)
    print(make_printable("\n".join(format_node_stacks(found)), lines=True))


if __name__ == "__main__":
    main()
