"""One run, in namespaces of its own: `python -m tests.jobs.verdict_corpus.stage CASE FOLDER JOB`.

It launches the ranks as a job step does, does to them what the case says, watches their progress,
reads their stacks as the agent does when they make none, and ends them. What the job leaves is in
FOLDER afterwards; `tests.jobs.verdict_corpus.pack` makes evidence of it.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import msgspec

from tests.jobs.verdict_corpus import outside
from tests.jobs.verdict_corpus.cases import Case
from tests.jobs.verdict_corpus.nodes import Node, build_nodes

PROGRAMS = Path(__file__).with_name("programs")
ROOT = Path(__file__).parents[3]
START_S, RUN_S = 240.0, 240.0
"""Seconds until every rank trains, and from then on."""
STILL_S, ENDS_S = 25.0, 120.0
"""Seconds without a step of any rank after which the run makes no progress.

A rank that fails takes a minute to end on a busy machine: a run whose kind ends has longer.
"""
ENDING = frozenset(
    {"exception", "host_memory", "device_memory", "killed"}
    | {"wrong_shape", "dead_loader", "disk_full"}
)
GRACE_S = 15.0
"""Seconds that the other ranks have after one has ended badly, as `srun --kill-on-bad-exit`."""
DUMP_S = 40.0
"""Seconds for the dumps: a rank's first one imports torch's compiler (1.2 s of a processor)."""
PORT = 29500
OWN_FOLDERS = frozenset(
    {"pretrain.py", "sharded.py", "experts.py", "pipeline.py", "language.py", "diloco.py"}
)
"""Programs whose ranks each write into a folder of checkpoints of their own."""
AHEAD = 2
"""Batches that a data loader fetches before they are needed."""


class Log:
    """The job's log: the lines of all processes in the order in which they come."""

    def __init__(self, folder: Path, labelled: bool) -> None:
        self._file = (folder / "job.log").open("w")
        self._labelled = labelled
        self._lock = threading.Lock()
        self._folder = folder

    def follow(self, task: int, pipe: IO[str]) -> threading.Thread:
        """Copy a task's lines into the log and into a file of its own."""
        thread = threading.Thread(target=self._copy, args=(task, pipe), daemon=True)
        thread.start()
        return thread

    def _copy(self, task: int, pipe: IO[str]) -> None:
        with (self._folder / f"task-{task}.log").open("w") as own:
            for line in pipe:
                own.write(line)
                own.flush()
                with self._lock:
                    self._file.write(f"{task}: {line}" if self._labelled else line)
                    self._file.flush()


class Run:
    """A run on its nodes."""

    def __init__(self, case: Case, folder: Path, job: int) -> None:
        self.case, self.folder, self.job = case, folder, job
        self.nodes: list[Node] = []
        self.tasks: list[subprocess.Popen[str]] = []
        self.task_nodes: list[str] = []
        self.ends: list[dict[str, object]] = []
        self.hung = False
        self.began = time.time()
        self._readers: list[threading.Thread] = []
        self._kept: list[object] = []

    def prepare(self) -> None:
        """Make the folders and the nodes."""
        for name in ("checkpoints", "pids", "steps", "flight"):
            (self.folder / name).mkdir()
        if Path(self.case.program).name in OWN_FOLDERS:
            for rank in range(self.case.world):
                (self.folder / "checkpoints" / str(rank)).mkdir()
        if self.case.disk_mib:
            outside.mount_small_disk(self.case, self.folder)
        if self.case.stall == "mount":
            self._kept.append(outside.mount_dead_server(self.folder / "mounted"))
        if self.case.stall == "lock":
            self._kept.append(outside.hold_lock(self.folder / "lease.lock"))
        self.nodes = build_nodes(len(self.case.nodes), self.folder)

    def launch(self) -> None:
        """Start the ranks, or the launcher of each node's ranks."""
        log = Log(self.folder, self.case.labelled)
        program = str(PROGRAMS / self.case.program)
        rank = 0
        for number, (node, count) in enumerate(zip(self.nodes, self.case.nodes, strict=True)):
            if self.case.launcher == "plain":
                for local in range(count):
                    more = {"RANK": str(rank + local), "LOCAL_RANK": str(local)}
                    more |= {"WORLD_SIZE": str(self.case.world), "MASTER_PORT": str(PORT)}
                    more |= {"MASTER_ADDR": self.nodes[0].address}
                    more |= {"SLURM_NTASKS": str(self.case.world)}
                    self._start(log, node, [program], more)
            else:
                more = {"SLURM_NTASKS": str(len(self.nodes))}
                if self.case.launcher in ("spawn", "lightning"):
                    more |= {"MASTER_ADDR": self.nodes[0].address, "MASTER_PORT": str(PORT)}
                if self.case.launcher == "lightning":
                    more |= {"NODE_RANK": str(number), "PER_NODE": str(count)}
                    more |= {"NODES": str(len(self.nodes))}
                self._start(log, node, self._make_launcher(number, rank, program), more)
            rank += count

    def _make_launcher(self, number: int, first: int, program: str) -> list[str]:
        """Return the arguments of Python that start a node's ranks, of which `first` is the
        lowest."""
        count, address = self.case.nodes[number], self.nodes[0].address
        if self.case.launcher == "torchrun":
            return [
                "-m", "torch.distributed.run", f"--nnodes={len(self.nodes)}",
                f"--node-rank={number}", f"--nproc-per-node={count}",
                f"--master-addr={address}", f"--master-port={PORT}", program,
            ]  # fmt: skip
        if self.case.launcher == "accelerate":
            # As for GPUs: for processors alone it would call mpirun.
            return [
                "-m", "accelerate.commands.launch", "--multi_gpu", "--mixed_precision=no",
                f"--num_machines={len(self.nodes)}", f"--num_processes={self.case.world}",
                f"--machine_rank={number}", f"--main_process_ip={address}",
                f"--main_process_port={PORT}", "--dynamo_backend=no", program,
            ]  # fmt: skip
        if self.case.launcher == "deepspeed":
            hosts = {
                node.name: list(range(n))
                for node, n in zip(self.nodes, self.case.nodes, strict=True)
            }
            listed = base64.urlsafe_b64encode(json.dumps(hosts).encode()).decode()
            return [
                "-m", "deepspeed.launcher.launch", f"--world_info={listed}",
                f"--node_rank={number}", f"--master_addr={address}", f"--master_port={PORT}",
                "--no_local_rank", program,
            ]  # fmt: skip
        if self.case.launcher == "lightning":
            return [program]
        assert self.case.launcher == "spawn"
        spawn = str(PROGRAMS / "spawn.py")
        return [spawn, program, str(first), str(count), str(self.case.world)]

    def _start(self, log: Log, node: Node, command: list[str], more: dict[str, str]) -> None:
        task = len(self.tasks)
        settings = {
            "part": self.case.part, "action": self.case.action, "how": self.case.how,
            "rank": self.case.rank, "step": self.case.step, "lasting": self.case.lasting,
            "timeout_s": self.case.timeout_s, "workers": self.case.workers,
            "seed": self.case.seed, "log_every": 2, "per_node": self.case.nodes[0],
        }  # fmt: skip
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.folder), "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "eth0", "JOB": json.dumps(settings),
            "SLURM_JOB_ID": str(self.job), "SLURM_STEP_ID": "0", "SLURM_PROCID": str(task),
            "SLURMD_NODENAME": node.name, "TORCH_FR_BUFFER_SIZE": "200",
            "TORCH_FR_DUMP_TEMP_FILE": f"{self.folder}/flight/nccl_trace_rank_",
            "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{self.folder}/flight/pipe_",
        }  # fmt: skip
        process = subprocess.Popen(
            [*node.inside, sys.executable, *command], cwd=self.folder, env=environment | more,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace", start_new_session=True,  # as slurmstepd starts a task
        )  # fmt: skip
        self.tasks.append(process)
        self.task_nodes.append(node.name)
        assert process.stdout is not None
        self._readers.append(log.follow(task, process.stdout))

    def read_steps(self) -> dict[int, int]:
        """Return the last step of each rank that has done one."""
        found = {}
        for path in (self.folder / "steps").iterdir():
            if path.name.isdecimal():
                found[int(path.name)] = int(path.read_text() or 0)
        return found

    def watch_until(self, done: Callable[[], bool], limit_s: float) -> bool:
        """Note which tasks end, until `done`; return false where time is up."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            self.note_ends()
            if done():
                return True
            time.sleep(0.05)
        return False

    def note_ends(self) -> None:
        """Note the tasks that have ended since."""
        noted = {end["task"] for end in self.ends}
        for task, process in enumerate(self.tasks):
            code = process.poll()
            if code is not None and task not in noted:
                row: dict[str, object] = {"task": task, "node": self.task_nodes[task]}
                self.ends.append(row | {"code": code, "at": round(time.time() - self.began, 2)})

    def has_failed(self) -> bool:
        """Return whether a task has ended badly, or all have ended."""
        return any(end["code"] for end in self.ends) or len(self.ends) == len(self.tasks)

    def has_dumps(self) -> bool:
        """Return whether every rank has written its flight recorder."""
        dumps = list((self.folder / "flight").glob("nccl_trace_rank_?"))
        return len(dumps) == self.case.world

    def follow(self) -> None:
        """Let the run train, do to it what the case says, and see it end or stop."""
        pids = self.folder / "pids"

        def starts() -> bool:
            return len(list(pids.iterdir())) == self.case.world or self.has_failed()

        if not self.watch_until(starts, START_S):
            raise TimeoutError("the ranks did not start")
        culprit = int((pids / str(self.case.rank)).read_text())
        outside.limit_rank(self.case, culprit, self.job)
        acted = not self.case.outside
        ends = self.case.kind in ENDING and self.case.how != "stop"
        still_s = ENDS_S if ends else STILL_S
        last, since = self.read_steps(), time.monotonic()
        until = time.monotonic() + RUN_S
        while time.monotonic() < until:
            self.note_ends()
            if self.has_failed():
                self.await_others()
                return
            steps = self.read_steps()
            if (
                not acted
                and len(steps) == self.case.world
                and min(steps.values()) >= self.case.step
            ):
                outside.act(self.case, culprit, self.nodes[self.case.find_node(self.case.rank)])
                acted = True
            if steps != last:
                last, since = steps, time.monotonic()
            # A data loader is some steps ahead of the rank.
            begun = max(steps.values(), default=-1) >= self.case.step - 1 - AHEAD and acted
            if time.monotonic() - since > still_s and begun and not self.hung:
                self.hung = True
                self.read_stacks()
                # A rank that has failed may take long to end, and one that dumps to dump.
                self.watch_until(lambda: self.has_failed() or self.has_dumps(), DUMP_S)
                if self.has_failed():
                    self.await_others()
                    return
                if self.case.timeout_s > 300:
                    return
                since = time.monotonic()
            time.sleep(0.05)
        raise TimeoutError(f"nothing happened until step {self.read_steps()}")

    def await_others(self) -> None:
        """Give the other ranks the time that srun gives them."""
        self.hung = False
        self.watch_until(lambda: len(self.ends) == len(self.tasks), GRACE_S)

    def read_stacks(self) -> None:
        """Read each node's stacks as the agent does."""
        lines = []
        for node in self.nodes:
            command = [sys.executable, "-m", "hpctl.jobs.hangs.stacks", f"--job={self.job}"]
            command += ["--uid=0", f"--node={node.name}", "--no-native"]
            done = subprocess.run(
                [*node.inside, *command], cwd=ROOT, capture_output=True, text=True, timeout=120,
                check=True,
            )  # fmt: skip
            lines.append(done.stdout)
        (self.folder / "stacks.txt").write_text("".join(lines))

    def end(self) -> None:
        """End what still runs, and record how the run ended."""
        alone = len(self.ends)
        for number, wait_s in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 10.0)):
            for process in self.tasks:
                if process.poll() is None:
                    # What stops a rank does not stop the end of its job.
                    process.send_signal(number)
            self.watch_until(lambda: len(self.ends) == len(self.tasks), wait_s)
        for reader in self._readers:
            reader.join(5)
        record = {
            "job": self.job, "began": self.began, "hung": self.hung, "ends": self.ends,
            "ended_alone": alone, "steps": {str(k): v for k, v in self.read_steps().items()},
            "kernel": outside.read_kernel_lines(self.job),
        }  # fmt: skip
        (self.folder / "run.json").write_text(json.dumps(record))


def main() -> None:
    case = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Case)
    run = Run(case, Path(sys.argv[2]), int(sys.argv[3]))
    run.prepare()
    run.launch()
    try:
        run.follow()
    finally:
        run.end()
    # The namespace ends with this process, and with it all that is in it.
    os._exit(0)


if __name__ == "__main__":
    main()
