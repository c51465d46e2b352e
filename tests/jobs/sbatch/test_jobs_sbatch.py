"""`hpctl sbatch` from end to end, with an sbatch that writes down what it gets."""

import json
import os
import sys
import threading
from pathlib import Path

import pytest

from tests.process import run_text

ROOT = str(Path(__file__).resolve().parents[3])
STUB = """#!{python}
import json, os, sys
words = sys.argv[1:]
script = next((w for w in words if w.endswith(".sh")), None)
text = open(script, encoding="latin-1").read() if script else sys.stdin.read()
with open({record!r}, "w") as file:
    json.dump({{"words": words, "script": script, "text": text}}, file)
print("77;there")
print("sbatch: warning: of its own", file=sys.stderr)
sys.exit(int(os.environ.get("STUB_EXIT", "0")))
"""
PLAIN = "#!/bin/sh\n#SBATCH -N2\necho hello \xe9\n"


class Shell:
    def __init__(self, tmp_path) -> None:
        self.tmp = tmp_path
        self.record = tmp_path / "record.json"
        stub = tmp_path / "bin/sbatch"
        stub.parent.mkdir()
        stub.write_text(STUB.format(python=sys.executable, record=str(self.record)))
        stub.chmod(0o755)
        (tmp_path / "job.sh").write_bytes(PLAIN.encode("latin-1"))  # not UTF-8: bytes must survive

    def run(self, *text, stdin="", **environment):
        return run_text(
            [sys.executable, "-m", "hpctl", "sbatch", *text],
            env={
                "PATH": f"{self.tmp}/bin:{os.environ['PATH']}",
                "PYTHONPATH": ROOT,
                "TMPDIR": str(self.tmp),
                **environment,
            },
            cwd=self.tmp,
            input=stdin,
            errors="surrogateescape",
        )

    def recorded(self) -> dict[str, object]:
        return json.loads(self.record.read_text())


@pytest.fixture
def shell(tmp_path) -> Shell:
    return Shell(tmp_path)


def test_submits_a_copy_that_resumes(shell: Shell) -> None:
    done = shell.run("--parsable", "--checkpoint-dir", "ck", "-J", "n", "job.sh", "--lr", "1")
    assert (done.returncode, done.stdout) == (0, "77;there\n")
    stderr = done.stderr.splitlines()
    assert stderr[:3] == [
        "hpctl: added --requeue --open-mode=append",
        "hpctl: registered in the job's Comment: ckpt",
        f"hpctl: resumes from the last complete checkpoint in {shell.tmp}/ck",
    ]
    assert stderr[3].startswith("hpctl: recognizes PyTorch files that record their step or epoch")
    assert stderr[3].endswith("declare others with --checkpoint-files")
    assert stderr[4].startswith(f"hpctl: warning: {shell.tmp}/ck is ")
    assert stderr[5:] == ["sbatch: warning: of its own"]
    got = shell.recorded()
    copy = got["script"]
    comment = f'--comment=hpctl:{{"ckpt":"{shell.tmp}/ck"}}'
    args = ["--requeue", "--open-mode=append", "--parsable", "-J", "n", comment, copy, "--lr", "1"]
    assert got["words"] == args
    assert Path(str(copy)).name == "job.sh"  # Slurm names the job after it
    assert not Path(str(copy)).exists()
    assert f"PYTHONPATH={ROOT}" in str(got["text"])
    assert "echo hello \xe9\n" in str(got["text"])
    assert (shell.tmp / "ck").is_dir()


def test_dry_run_as_json(shell: Shell) -> None:
    done = shell.run(
        "--dry-run", "--json", "--checkpoint-dir", "/fsx/c", "--comment", "x", "job.sh", "a"
    )
    assert not shell.record.exists()
    shown = json.loads(done.stdout)
    assert shown["registered"] == {"ckpt": "/fsx/c"}
    assert shown["command"][1:] == [
        "--requeue", "--open-mode=append", "--comment", "x",
        '--comment=hpctl:{"ckpt":"/fsx/c"} x', "job.sh", "a",
    ]  # fmt: skip
    assert "hpctl_preamble" in shown["script"]
    assert shown["notes"][0] == "added --requeue --open-mode=append"
    assert shell.run("--json", "job.sh").returncode == 1
    done = shell.run("--dry-run", "--checkpoint-dir", "ck", "job.sh", "x y", PYTHONUTF8="1")
    assert not (shell.tmp / "ck").exists()
    assert done.stdout.splitlines()[-1].endswith("job.sh 'x y'")


def test_dry_run_after_the_script_submits_nothing_and_says_where_it_goes(shell: Shell) -> None:
    done = shell.run("job.sh", "--dry-run")
    assert (done.returncode, done.stdout) == (1, "")
    assert "nothing is submitted" in done.stderr
    assert "hpctl sbatch --dry-run job.sh" in done.stderr
    assert not shell.record.exists()


def test_dashes_before_the_script_leave_dry_run_to_the_script(shell: Shell) -> None:
    done = shell.run("--", "job.sh", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert shell.recorded()["words"][-1] == "--dry-run"
    assert "after the script" not in done.stderr


@pytest.mark.parametrize("late", ["--spares=2", "--checkpoint-dir"])
def test_another_option_after_the_script_is_warned_of(shell: Shell, late: str) -> None:
    done = shell.run("job.sh", late, "x", "--lr")
    assert done.returncode == 0, done.stderr
    assert shell.recorded()["words"][-3:] == [late, "x", "--lr"]
    option = late.partition("=")[0]
    (warning,) = [line for line in done.stderr.splitlines() if "after the script" in line]
    assert warning.startswith(f"hpctl: warning: {option} after the script is an argument")


def test_from_stdin(shell: Shell) -> None:
    text = "#!/bin/sh\n#HPCTL --checkpoint-dir ck\ntrue\n"
    done = shell.run(stdin=text)
    assert done.returncode == 0, done.stderr
    assert Path(shell.recorded()["words"][-1]).name == "sbatch"
    assert shell.run(stdin="#!/bin/sh\ntrue\n").returncode == 0
    assert "--comment=hpctl:{}" in shell.recorded()["words"]


def test_a_script_that_can_be_read_only_once(shell) -> None:
    # hpctl sbatch <(make-script): the shell names a pipe.
    pipe = shell.tmp / "pipe.sh"
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_text, args=(PLAIN,), daemon=True).start()
    assert shell.run(str(pipe)).returncode == 0
    assert str(shell.recorded()["text"]).endswith("echo hello \xc3\xa9\n")


def test_a_bare_name_is_looked_for_where_chdir_says(shell) -> None:
    # As sbatch does: there it comes before the working directory.
    there = shell.tmp / "there"
    there.mkdir()
    (there / "job.sh").write_text("#!/bin/sh\necho there\n")
    for text in (("-D", str(there)), ("--chdir=there",)):
        done = shell.run(*text, "--checkpoint-dir", str(shell.tmp / "save"), "job.sh")
        assert done.returncode == 0, done.stderr
        assert str(shell.recorded()["text"]).endswith("echo there\n")
    assert shell.run("-D", str(there), "--save-signal", "USR1", "./job.sh").returncode == 0
    assert str(shell.recorded()["text"]).endswith("echo hello \xe9\n")


def test_sbatchs_exit_code_is_ours(shell: Shell) -> None:
    assert shell.run("job.sh", STUB_EXIT="7").returncode == 7


def test_slurm_bin_and_its_absence(shell: Shell) -> None:
    empty = shell.tmp / "empty"
    empty.mkdir()
    for done in (
        shell.run("--slurm-bin", str(empty), "job.sh"),
        shell.run("job.sh", HPCTL_SLURM_BIN=str(empty)),
    ):
        assert done.returncode == 1
        assert f"cannot find the program sbatch in {empty}" in done.stderr
        assert "--slurm-bin" in done.stderr
    assert shell.run("job.sh", PATH=str(empty), HPCTL_SLURM_BIN=f"{shell.tmp}/bin").returncode == 0


def test_errors_are_one_message_and_a_fix(shell: Shell) -> None:
    done = shell.run("--brand-new", "5", "job.sh")
    assert done.returncode == 1
    assert "cannot read the script 5" in done.stderr
    assert "If --brand-new is an option with a value, write it as OPTION=VALUE." in done.stderr
    done = shell.run("--checkpoint-dir", "job.sh/ck", "job.sh")
    assert done.returncode == 1
    assert "cannot create the checkpoint directory" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("options", [("--wrap", "true"), ("/job.sh",), ("--chdir=/", "/job.sh")])
def test_a_deleted_working_directory_is_one_error_and_a_fix(shell: Shell, options) -> None:
    gone = shell.tmp / "gone"
    words = [f"{shell.tmp}{word}" if word == "/job.sh" else word for word in options]
    gone.mkdir()
    command = [sys.executable, "-m", "hpctl", "sbatch", *words]
    deletes = ["sh", "-c", 'cd "$0" && rmdir "$0" && exec "$@"', str(gone), *command]
    path = f"{shell.tmp}/bin:{os.environ['PATH']}"
    done = run_text(deletes, env={"PATH": path, "PYTHONPATH": ROOT})
    assert done.returncode == 1
    first, *rest = done.stderr.splitlines()
    assert first == f"hpctl: cannot read the working directory {gone}: No such file or directory"
    assert "Run `cd` to a directory that exists" in " ".join(rest)
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert not shell.record.exists()
