"""The helpers that save checkpoints of any format: what they finish is whole, nothing else is."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hpctl.checkpoints import hpctl_checkpoint, search
from hpctl.checkpoints.search import (
    CompleteCheckpoint,
    find_newest_complete_checkpoint_in_tiers,
    verify_checkpoint,
)
from hpctl.cli.main import cli
from tests.architecture.source import imports
from tests.process import run_text

CASES = yaml.safe_load(Path(__file__).with_name("hpctl_checkpoint_cases.yaml").read_text())

SOURCE = Path("hpctl/checkpoints/hpctl_checkpoint.py")
SHELLS = [shell for shell in ("dash", "bash", "ksh", "mksh") if shutil.which(shell)]
BLOB = bytes(range(256)) * 40

PROGRAM = """
import importlib.util, json, os, signal, sys
assert importlib.util.find_spec("hpctl") is None and importlib.util.find_spec("msgspec") is None
sys.path.insert(0, os.environ["HELPER"])
import hpctl_checkpoint
from hpctl_checkpoint import saving
# The process dies just before the n-th thing that it does to the file system.
left, on = int(os.environ.get("KILL_AT", "0")), False
def hook(event, arguments):
    global left
    if on and event.split(".")[0] in ("open", "os", "piece", "shutil"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
blob, rank = bytes(range(256)) * 40, os.environ.get("RANK", "0")
on = True
with saving(7, wait_s=float(os.environ.get("WAIT_S", "60"))) as save:
    with open(save.path("state-" + rank + ".json"), "w") as file:
        json.dump({"step": 7, "rank": rank}, file)
    with open(save.path("deep/weights-" + rank), "wb") as file:
        for at in range(0, len(blob), 2048):
            sys.audit("piece")
            file.write(blob[at : at + 2048])
            file.flush()
on = False
"""


def helper(directory: Path, *text: str) -> Path:
    """The file as a user gets it."""
    done = CliRunner().invoke(cli, ["checkpoint", "helper", *text])
    assert done.exit_code == 0
    path = directory / ("hpctl_checkpoint.sh" if text else "hpctl_checkpoint.py")
    path.write_text(done.stdout)
    return path


class Job:
    """Ranks of a job whose Python has nothing of hpctl."""

    def __init__(self, tmp: Path) -> None:
        self.root = tmp / "ck"
        self.root.mkdir()
        (tmp / "helper").mkdir()
        helper(tmp / "helper")
        self.env = {"HELPER": str(tmp / "helper"), "HPCTL_CHECKPOINT_DIR": str(self.root)}

    def start(self, **env) -> subprocess.Popen[str]:
        args = [getattr(sys, "_base_executable", sys.executable), "-I", "-S", "-c", PROGRAM]
        text = self.env | {name: str(value) for name, value in env.items()}
        return subprocess.Popen(args, env=text, stderr=subprocess.PIPE, text=True)

    def run(self, **env) -> tuple[int, str]:
        process = self.start(**env)
        text = process.communicate(timeout=60)[1]
        return process.returncode, text

    def whole(self) -> set[int | None]:
        """The steps that hpctl calls whole; each of them is, to the last byte."""
        found = set()
        for row in search.list_checkpoints(self.root, deep=True):
            if isinstance(row, CompleteCheckpoint):
                assert (row.path / "deep/weights-0").read_bytes() == BLOB
                assert json.loads((row.path / "state-0.json").read_text())["step"] == row.step
                found.add(row.step)
            else:
                assert not row.claimed, row
        return found


@pytest.fixture
def job(tmp_path) -> Job:
    return Job(tmp_path)


def test_a_python_without_hpctl_saves_what_hpctl_proves(job):
    assert job.run() == (0, "")
    row = verify_checkpoint(job.root / "step-00000007", deep=True)
    assert (row.step, row.world_size, row.format, row.deep) == (7, 1, "generic", True)
    assert (job.whole(), [path.name for path in job.root.iterdir()]) == ({7}, ["step-00000007"])


def kills(job, stride=1, **env):
    """Start it again and again, killed at its first, second, ... touch of a file, to the last."""
    for number in range(1, 200, stride):
        code, text = job.run(KILL_AT=number, **env)
        assert code in (0, -signal.SIGKILL), text
        yield code
        if code == 0:
            assert number > 15, "hardly any point was tried"
            return
    raise AssertionError("it never came to its end")


@pytest.mark.slow
def test_a_save_that_is_killed_at_any_point_is_never_whole(job):
    codes = []
    for code in kills(job):
        codes.append(code)
        published = (job.root / "step-00000007").exists()
        assert job.whole() == ({7} if published else set())
        assert find_newest_complete_checkpoint_in_tiers(job.root).verdict == (
            "found" if published else "none"
        )
        shutil.rmtree(job.root)
        job.root.mkdir()
    assert codes.count(0) == 1


SLURM = {"SLURM_JOB_ID": 11, "SLURM_STEP_ID": 0, "SLURM_STEP_NUM_TASKS": 2}


@pytest.mark.slow
def test_rank_0_finishes_what_all_ranks_have_saved(job):
    first = job.start(**SLURM, SLURM_PROCID=0, RANK=0, WORLD_SIZE=2)
    time.sleep(0.3)
    assert first.poll() is None, "rank 0 did not wait"
    assert find_newest_complete_checkpoint_in_tiers(job.root).verdict == "none"
    assert (job.run(**SLURM, RANK=1, WORLD_SIZE=2)[0], first.wait(timeout=30)) == (0, 0)
    first.communicate()
    row = verify_checkpoint(job.root / "step-00000007", deep=True)
    assert row.world_size == 2
    names = {path.relative_to(row.path).as_posix() for path in row.path.rglob("*")}
    assert names == {
        "manifest.json", "deep", "deep/weights-0", "deep/weights-1", "state-0.json", "state-1.json",
    }  # fmt: skip


@pytest.mark.slow
def test_where_one_of_several_ranks_is_killed_nothing_is_whole(job):
    pair = {**SLURM, "WORLD_SIZE": 2}
    for number in (1, 4, 9, 12, 15):
        assert job.run(**pair, RANK=1, KILL_AT=number)[0] == -signal.SIGKILL
        code, text = job.run(**pair, RANK=0, WAIT_S=0.1)
        assert code == 1
        assert "rank 1 of 2 saved nothing" in text
        assert job.whole() == set()
    # Rank 0 is killed at any point while all parts are there.
    for code in kills(job, 2, **pair, RANK=0, WAIT_S=5):
        published = (job.root / "step-00000007").exists()
        assert job.whole() == ({7} if published else set())
        if code:
            shutil.rmtree(job.root)
            job.root.mkdir()
            assert job.run(**pair, RANK=1)[0] == 0
    assert job.whole() == {7}


@pytest.mark.slow
@pytest.mark.parametrize(
    "later", [{"SLURM_RESTART_COUNT": 1}, {"SLURM_STEP_ID": 1}, {"TORCHELASTIC_RESTART_COUNT": 1}]
)
def test_the_part_of_an_earlier_start_is_never_taken(job, later):
    assert job.run(**SLURM, RANK=1, WORLD_SIZE=2)[0] == 0
    code, text = job.run(**(SLURM | later), RANK=0, WORLD_SIZE=2, WAIT_S=0.1)
    assert code == 1
    assert "TimeoutError: rank 1 of 2 saved nothing" in text
    assert job.whole() == set()


def test_a_rank_that_saves_again_takes_its_part_back_first(job):
    pair = {**SLURM, "WORLD_SIZE": 2}
    assert job.run(**pair, RANK=1)[0] == 0
    assert job.run(**pair, RANK=1, KILL_AT=9)[0] == -signal.SIGKILL
    assert job.run(**pair, RANK=0, WAIT_S=0.1)[0] == 1


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    for name in list(os.environ):
        if name.startswith(("SLURM_", "HPCTL_", "PMI", "OMPI_", "RANK", "WORLD_SIZE")):
            monkeypatch.delenv(name)
    return tmp_path


def save(root: Path, step: int, data: bytes = b"x", **given) -> Path:
    with hpctl_checkpoint.saving(step, root, **given) as one:
        one.path("data").write_bytes(data)
    return one.final


def test_nothing_gets_its_name_before_it_is_on_stable_storage(root, monkeypatch):
    events: list[object] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        events.append(os.fstat(fd).st_ino)

    def renamed(self: Path, target: Path) -> Path:
        os.rename(self, target)
        events.append(target.name)
        return target

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", renamed)
    with hpctl_checkpoint.saving(3, root) as one:
        one.path("a").write_bytes(b"a")
        one.path("deep/er/b").write_bytes(b"b")
        made = one.path("made")
        made.mkdir()
        (made / "c").write_bytes(b"c")
    inode = {
        path.relative_to(one.final).as_posix(): path.stat().st_ino
        for path in [one.final, *one.final.rglob("*")]
    }
    listed = events.index("manifest.json")
    names = ("a", "deep", "deep/er", "deep/er/b", "made", "made/c", ".", "manifest.json")
    assert {inode[name] for name in names} <= set(events[:listed])
    at = events.index("step-00000003")
    assert inode["."] in events[listed:at], "the manifest's own name is not durable"
    assert events[at + 1 :] == [root.stat().st_ino]


def test_the_first_whole_one_is_kept_and_a_damaged_one_renamed(root):
    final = save(root, 4, b"first")
    save(root, 4, b"other")
    assert ((final / "data").read_bytes(), len(list(root.iterdir()))) == (b"first", 1)
    (final / "data").write_bytes(b"FIRST")
    save(root, 4, b"other")
    assert isinstance(verify_checkpoint(final, deep=True), CompleteCheckpoint)
    assert ((final / "data").read_bytes(), len(list(root.iterdir()))) == (b"other", 2)


def test_a_block_that_raises_leaves_nothing(root):
    with pytest.raises(OSError, match="full"), hpctl_checkpoint.saving(4, root) as one:  # noqa: PT012
        one.path("data").write_bytes(b"half")
        raise OSError("full")
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("name", ["", "/etc/x", "../x", "a/../../x", "manifest.json"])
def test_names_that_cannot_be_in_a_checkpoint(root, name):
    with pytest.raises(ValueError, match="cannot be"), hpctl_checkpoint.saving(4, root) as one:
        one.path(name)


def test_a_save_that_hpctl_would_not_call_whole_is_refused(root):
    with pytest.raises(FileNotFoundError), hpctl_checkpoint.saving(4, root) as one:
        one.path("never-written")
    with pytest.raises(ValueError, match="not a regular"), hpctl_checkpoint.saving(4, root) as one:
        one.path("link").symlink_to("/etc/passwd")
    with pytest.raises(ValueError, match="no files"), hpctl_checkpoint.saving(4, root):
        pass
    with pytest.raises(ValueError, match="HPCTL_CHECKPOINT_DIR"), hpctl_checkpoint.saving(4):
        pass
    with pytest.raises(ValueError, match="attempt="), hpctl_checkpoint.saving(4, root, ranks=2):
        pass
    save(root, 4, rank=1, ranks=2, attempt="a")
    with pytest.raises(ValueError, match="two ranks saved data"):
        save(root, 4, rank=0, ranks=2, attempt="a")
    assert find_newest_complete_checkpoint_in_tiers(root).verdict == "none"


def test_ranks_that_do_not_agree_are_refused(root):
    save(root, 4, rank=1, ranks=3, attempt="a")
    with pytest.raises(ValueError, match="rank 1 saves step 4 of 3 ranks"):
        save(root, 4, rank=0, ranks=2, attempt="a")
    assert find_newest_complete_checkpoint_in_tiers(root).verdict == "none"


@pytest.mark.parametrize(("environment", "told"), CASES["launched as"])
def test_who_a_process_is(root, monkeypatch, environment, told):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert hpctl_checkpoint._read_rank_and_world_size() == tuple(told)


def test_it_takes_any_python_since_3_8_and_nothing_else():
    ast.parse(SOURCE.read_text(), feature_version=(3, 8))
    assert {name.partition(".")[0] for _, name in imports(SOURCE)} <= sys.stdlib_module_names


def seal(shell, script, directory, *text, cwd=None):
    done = run_text(
        [shell, str(script), str(directory), *text], cwd=cwd, env={"PATH": os.environ["PATH"]}
    )
    return done.returncode, done.stderr


def written(root: Path, name: str = "step-120.tmp-7-0") -> Path:
    made = root / name
    (made / "deep").mkdir(parents=True)
    (made / "state.json").write_text('{"step": 120}')
    (made / ".hidden").write_bytes(b"")
    (made / "deep/weights").write_bytes(BLOB)
    return made


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_finishes_what_hpctl_proves(tmp_path, shell):
    script, ck = helper(tmp_path, "--shell"), tmp_path / "c k"
    assert seal(shell, script, Path(written(ck).name), "0120", "4", cwd=ck) == (0, "")
    row = verify_checkpoint(ck / "step-120", deep=True)
    assert (row.step, row.world_size) == (120, 4)
    assert [path.name for path in ck.iterdir()] == ["step-120"]
    assert sorted(p.name for p in row.path.iterdir()) == [
        ".hidden", "deep", "manifest.json", "state.json",
    ]  # fmt: skip
    # The same step again: the first stays.
    again = written(ck)
    (again / "state.json").write_text("{}")
    code, text = seal(shell, script, again, "120")
    assert (code, "it is kept" in text) == (0, True)
    assert isinstance(verify_checkpoint(ck / "step-120", deep=True), CompleteCheckpoint)
    assert (row.path / "state.json").read_text() == '{"step": 120}'


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_that_is_killed_at_any_line_leaves_nothing_whole(tmp_path, shell):
    lines = helper(tmp_path, "--shell").read_text().splitlines(keepends=True)
    messages = [n for n, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    cut = [[*lines[:n], "kill -9 $$\n"] for n in messages if not lines[n - 1].endswith("\\\n")]
    loop = lines.index("        comma=,\n")
    cut.append([*lines[:loop], "kill -9 $$\n", *lines[loop:]])  # inside the loop
    runs = {False: 0, True: 0}
    for number, text in enumerate(cut):
        script, ck = tmp_path / "cut.sh", tmp_path / f"ck-{number}"
        script.write_text("".join(text))
        if subprocess.run([shell, "-n", str(script)], capture_output=True).returncode:
            continue  # in the middle of a compound command
        made = written(ck)
        assert seal(shell, script, made, "120")[0] == -signal.SIGKILL
        rows = search.list_checkpoints(ck, deep=True)
        whole = any(isinstance(row, CompleteCheckpoint) for row in rows)
        assert whole is not made.exists()
        assert whole or find_newest_complete_checkpoint_in_tiers(ck).verdict == "none"
        runs[whole] += 1
        if not whole:
            assert seal(shell, tmp_path / "hpctl_checkpoint.sh", made, "120") == (0, "")
            assert isinstance(verify_checkpoint(ck / "step-120", deep=True), CompleteCheckpoint)
    assert runs[False] > 20
    assert runs[True] >= 1


@pytest.mark.parametrize("shell", SHELLS)
def test_what_a_shell_refuses(tmp_path, shell):
    script, ck = helper(tmp_path, "--shell"), tmp_path / "ck"
    assert "no .tmp in it" in seal(shell, script, written(ck, "step-1"), "1")[1]
    made = written(ck, "step-2.tmp-7")
    for text in ((), ("x",), ("-1",), ("1", "0"), ("1", "x")):
        assert seal(shell, script, made, *text)[0] == 1
    (made / "a b").touch()
    assert "other characters" in seal(shell, script, made, "2")[1]
    (made / "a b").unlink()
    os.mkfifo(made / "pipe")
    assert "neither a file nor" in seal(shell, script, made, "2")[1]
    empty = ck / "step-3.tmp-7"
    empty.mkdir()
    assert "no files" in seal(shell, script, empty, "3")[1]
    # Something else of that name is not replaced, nor moved into.
    (made / "pipe").unlink()
    (ck / "step-2").mkdir()
    (ck / "step-2/mine").touch()
    assert seal(shell, script, made, "2")[0] == 1
    assert (os.listdir(ck / "step-2"), find_newest_complete_checkpoint_in_tiers(ck).verdict) == (
        ["mine"],
        "none",
    )


def test_shellcheck_finds_nothing():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    subprocess.run(["shellcheck", str(SOURCE.with_suffix(".sh"))], check=True, timeout=60)
