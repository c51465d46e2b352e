"""Launchers of one group on loopback, without Slurm: for the elastic tests and the benchmark."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hpctl.jobs.elastic.controller import RankGroupRecord
from hpctl.jobs.elastic.controller import read_rank_group_record as read
from tests.checkpoints.proof.torch_here import need
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[3]
TRAIN = str(ROOT / "examples/torch_ddp/train.py")


PROGRAM = """
import os, pathlib, sys, time
sys.path.insert(0, {folder!r})
import train
get = os.environ.__getitem__
rank, life = int(get("RANK")), int(get("TORCHELASTIC_RESTART_COUNT"))
pathlib.Path(get("HPCTL_CHECKPOINT_DIR"), f"pid-{{rank}}-{{life}}").write_text(str(os.getpid()))
{more}
train.main()
"""
"""The example's program, as a rank that tells its process id."""


def program(directory: Path, more: str = "") -> list[str]:
    """Write the training program with some trouble in it; the words that run it."""
    script = directory / "program.py"
    script.write_text(PROGRAM.format(folder=os.path.dirname(TRAIN), more=more))
    return [str(script)]


@pytest.fixture(autouse=True)
def with_torch() -> None:
    """Without torch these tests fail, and are skipped on request alone. It is not imported here."""
    if find_spec("torch") is None:
        need("torch")


class Launchers:
    """Some nodes' launchers. `directory` holds checkpoints (`save`), output and account."""

    def __init__(self, directory, args, *, nodes=2, nproc=2, options=(), **environment):
        self.directory, self.save = directory, directory / "save"
        self.save.mkdir(parents=True, exist_ok=True)
        self.secret = secrets.token_hex(16)
        step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": self.secret[:8], "SLURM_NNODES": str(nodes)}
        step["SLURM_STEP_NODELIST"] = "127.0.0.1"
        self.run_id = f"7.{self.secret[:8]}"
        self.marker = f"HPCTL_TEST_MARKER={self.secret}"
        self.out = directory / "out"
        base = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "HPCTL_"))}
        env = {
            **base, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo",
            "HPCTL_ELASTIC_SECRET": self.secret,
            "HPCTL_ELASTIC_RESULT": str(directory / "account.json"),
            "HPCTL_CHECKPOINT_DIR": str(self.save), "HPCTL_TEST_MARKER": self.secret, **environment,
        }  # fmt: skip
        self.processes = []
        for node in range(nodes):
            command = [sys.executable, "-m", "hpctl.jobs.elastic"]
            command += [f"--nproc-per-node={nproc}", *options, "--", *args]
            here = {"SLURM_PROCID": str(node), "SLURMD_NODENAME": f"node-{node}"}
            with self.out.open("ab") as out:
                self.processes.append(
                    subprocess.Popen(
                        command, env=env | step | here, stdout=out, stderr=out,
                        start_new_session=True,
                    )
                )  # fmt: skip

    def wait(self, timeout: float = 60.0) -> list[int]:
        """The launchers' exit codes."""
        limit = time.monotonic() + timeout
        try:
            return [each.wait(max(0.1, limit - time.monotonic())) for each in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout:g} s:\n{self.text()}") from None

    def text(self) -> str:
        return self.out.read_text(errors="replace")

    def account(self) -> RankGroupRecord:
        return read(self.directory / "account.json")

    def await_(self, test: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
        limit = time.monotonic() + timeout
        while not test():
            over = any(each.poll() is not None for each in self.processes)
            if over or time.monotonic() > limit:
                raise AssertionError(f"no {what}:\n{self.text()}")
            time.sleep(0.01)

    def pids(self, **wanted: str) -> list[int]:
        """Every live process of this group, whoever its parent is, with that in its environment."""
        needles = [f"{name}={value}" for name, value in wanted.items()] + [self.marker]
        own = {each.pid for each in self.processes}
        return [pid for pid, text in _environments() if pid not in own and set(needles) <= text]

    def rank_pids(self) -> dict[int, int]:
        """Process id by global rank, from files that the ranks write (`pid-RANK-RESTART`)."""
        found = {}
        for path in sorted(self.save.glob("pid-*"), key=lambda p: int(p.name.split("-")[2])):
            found[int(path.name.split("-")[1])] = int(path.read_text())
        return found

    def losses(self) -> list[dict[str, Any]]:
        path = self.save / "losses.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().split("\n")
        return [json.loads(line) for line in lines if line.endswith("}")]

    def curve(self) -> dict[int, str]:
        """Loss by step, as exact text; a step that was done again must have given the same."""
        reported: dict[int, str] = {}
        for line in self.losses():
            assert reported.setdefault(line["step"], line["loss"]) == line["loss"], line
        return reported

    def weights(self) -> str:
        return str(json.loads((self.save / "final.json").read_text())["sha256"])

    def close(self) -> None:
        """End what is left, by process id."""
        for each in self.processes:
            with contextlib.suppress(ProcessLookupError):
                each.kill()
            each.wait()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _environments() -> Iterator[tuple[int, set[str]]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                text = (entry / "environ").read_bytes().decode(errors="replace")
                yield int(entry.name), set(text.split("\0"))


def until_gone(launchers: Launchers, timeout: float = PATIENCE_S) -> list[int]:
    """What is left of a group after a while: nothing, if all is well."""
    limit = time.monotonic() + timeout
    while (left := launchers.pids()) and time.monotonic() < limit:
        time.sleep(0.05)
    return left


RANK = """
import json, os, pathlib, signal, subprocess, sys, time
get = os.environ.__getitem__
rank, count = int(get("RANK")), int(get("TORCHELASTIC_RESTART_COUNT"))
save = pathlib.Path(get("HPCTL_CHECKPOINT_DIR"))
def put(name, text):
    (save / f".{name}").write_text(text)
    (save / f".{name}").rename(save / name)
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
         "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID")
put(f"env-{rank}-{count}", json.dumps({n: get(n) for n in names} | {
    "resume": os.environ.get("HPCTL_RESUME_FROM"),
    "secret": os.environ.get("HPCTL_ELASTIC_SECRET")}))
def wait():
    put(f"pid-{rank}-{count}", str(os.getpid()))
    while not (save / "go").exists():
        time.sleep(0.01)
def fail(code):
    sys.stdout.flush()
    os._exit(code)
first = count == 0
"""

Start = Callable[..., Launchers]


@contextlib.contextmanager
def scripted(directory: Path):
    """Starts groups whose ranks are a few lines of Python after RANK, and ends them."""
    made: list[Launchers] = []

    def begin(body: str, *options: str, **more) -> Launchers:
        script = directory / "rank.py"
        script.write_text(RANK + body)
        made.append(Launchers(directory / "group", [str(script)], options=options, **more))
        return made[-1]

    try:
        yield begin
    finally:
        for each in made:
            each.close()


def all_wait(group: Launchers, ranks: int = 4, count: int = 0) -> None:
    """Until so many ranks of a generation have called `wait()`."""
    group.await_(
        lambda: len(list(group.save.glob(f"pid-*-{count}"))) == ranks, f"{ranks} ranks waiting"
    )
