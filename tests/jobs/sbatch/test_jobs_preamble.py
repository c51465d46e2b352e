"""The lines put into a script, run by real shells."""

import json
import os
import re
import shutil
import sys
from datetime import datetime
from pathlib import Path

import pytest

from hpctl.checkpoints.marks import CheckpointMark, write_checkpoint_mark_file
from hpctl.jobs.sbatch import preamble
from hpctl.jobs.sbatch.context import PythonRuntime
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions
from hpctl.vocabulary.registration import JobRegistration
from hpctl.vocabulary.trouble import NOT_FOUND_EXIT_CODE, STOP_EXIT_CODE
from tests.checkpoints.checkpoint_files import generic
from tests.process import run_text

ROOT = str(Path(__file__).resolve().parents[3])
SHELLS = [s for s in ("dash", "bash", "ksh", "mksh") if shutil.which(s)]
TAIL = (
    'echo "${HPCTL_RESUME_FROM-unset}|$HPCTL_CHECKPOINT_DIR|$HPCTL_RESTART_COUNT|$#|$*"\n'
    "set | grep -c ^hpctl_ || :\n"
)


class Job:
    def __init__(self, tmp_path) -> None:
        self.tmp = tmp_path
        self.root = tmp_path / 'it\'s a $HOME `dir` "x"'
        self.root.mkdir()
        self.python = sys.executable
        self.parts = {}

    def run(self, directory="", shell="sh", flags="-eu", tail=TAIL, **environment):
        parts = {"ckpt": directory or str(self.root), **self.parts}
        resume = parts.pop("resume", True)
        text = preamble.render_batch_script_preamble(
            PythonRuntime(self.python, ROOT), JobRegistration(**parts), resume=resume
        )
        # The waits between tries are for a file system that comes back, not for tests.
        path = self.tmp / "script.sh"
        path.write_text(text.replace("in 2 5 10 0;", "in 0 0;") + tail)
        done = run_text(
            [shell, flags, str(path), "a", "b c"],
            env={"PATH": os.environ["PATH"], "SLURM_JOB_ID": "42", **environment},
        )
        return done.returncode, done.stdout.splitlines(), done.stderr


@pytest.fixture
def job(tmp_path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize("shell", SHELLS)
def test_resumes_in_every_shell(job, shell):
    generic(job.root, "step-1", 1)
    newest = generic(job.root, "other", 10)
    (generic(job.root, "step-11", 11) / "data").unlink()
    code, out, err = job.run(shell=shell, SLURM_RESTART_COUNT="3")
    assert (code, out) == (0, [f"{newest}|{job.root}|3|2|a b c", "0"])
    assert f"resuming from {newest}" in err
    assert "passed over" in err


@pytest.mark.parametrize("shell", SHELLS)
def test_batches_to_skip_are_exported_after_going_back(job, shell):
    older = generic(job.root, "step-20", 20)
    generic(job.root, "step-30", 30)
    mark = CheckpointMark(True, 21, "alice", datetime.now(UTC), until_start=True, skip="20:22")
    write_checkpoint_mark_file(job.root, mark)
    tail = 'echo "$HPCTL_RESUME_FROM|${HPCTL_SKIP-unset}"\n'
    code, out, err = job.run(shell=shell, tail=tail, HPCTL_SKIP="1:2")
    assert (code, out) == (0, [f"{older}|20:22"])
    assert f"resuming from {older}, HPCTL_SKIP=20:22" in err
    generic(job.root, "step-40", 40)
    _, out, _ = job.run(shell=shell, tail=tail, HPCTL_SKIP="1:2")
    assert out == [f"{job.root}/step-40|unset"]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_request_to_save_does_not_end_the_script(job, shell):
    tail = 'kill -USR1 $$\nsh -c "kill -USR1 \\$\\$" || echo "child $?"\n'
    code, out, _ = job.run(shell=shell, tail=tail)
    assert code == 0
    (child,) = out
    assert child.startswith("child "), "what the script starts must not inherit it ignored"


def test_placeholders_are_filled_and_the_directory_made(job):
    _, out, _ = job.run(f"{job.root}/{{job_id}}/t{{array_task_id}}")
    assert out[0].split("|")[1] == f"{job.root}/42/t0"
    assert (job.root / "42/t0").is_dir()
    _, out, _ = job.run(
        f"{job.root}/{{job_id}}/t{{array_task_id}}",
        SLURM_ARRAY_JOB_ID="40",
        SLURM_ARRAY_TASK_ID="2",
    )
    assert out[0].split("|")[1] == f"{job.root}/40/t2"


def test_nothing_whole_stops_the_job_rather_than_start_over(job):
    (generic(job.root, "step-1", 1) / "data").unlink()
    code, out, err = job.run()
    assert (code, out) == (STOP_EXIT_CODE, [])
    assert "data is missing" in err
    assert "HPCTL_RESUME=scratch" in err
    code, out, _ = job.run(HPCTL_RESUME="scratch")
    assert (code, out[0].split("|")[0]) == (0, "unset")
    code, _, _ = job.run(f"{job.root}/{{job_id}}", HPCTL_RESUME="scratch")
    assert (code, (job.root / "42").is_dir()) == (0, True)


def test_a_missing_base_stops_the_job(job):
    job.root.rmdir()
    code, out, err = job.run()
    assert (code, out) == (STOP_EXIT_CODE, [])
    assert re.search(rf"{re.escape(str(job.root))}.* is not there on this node", err)
    assert not job.root.exists(), "it must not be made: it would hide the mount"


@pytest.mark.parametrize("broken", ["missing", "crashes", "babbles"])
def test_hpctl_out_of_order_fails_no_first_start_and_chooses_no_checkpoint(job, broken):
    fake = job.tmp / "python"
    if broken != "missing":
        fake.write_text(
            "#!/bin/sh\n" + ("exit 139\n" if broken == "crashes" else "echo hello; echo found\n")
        )
        fake.chmod(0o755)
    job.python = str(fake)
    code, out, err = job.run()
    assert (code, out[0].split("|")[0]) == (0, "unset")
    assert "hpctl itself did not answer" in err
    job.parts = {"tiers": ("s3://bucket/run",)}
    assert job.run()[:2] == (NOT_FOUND_EXIT_CODE, []), "the newest checkpoint may be in the tier"
    job.parts = {}
    generic(job.root, "step-9", 9)
    code, out, err = job.run()
    assert (code, out) == (NOT_FOUND_EXIT_CODE, []), "another node may have what is missing here"
    assert "hpctl itself did not answer" in err
    code, out, _ = job.run(HPCTL_RESUME="scratch")
    assert (code, out[0].split("|")[0]) == (0, "unset")


@pytest.mark.parametrize("shell", SHELLS)
def test_what_was_asked_for_is_exported(job, shell):
    job.parts = {
        "policy": {"why": 'it\'s "so" $HOME @BASE@'}, "spares": 2,
        "tiers": ("local:/it's/{job_id}", "s3://b/$p"), "save_signal": "USR2", "resume": False,
    }  # fmt: skip
    tail = (
        'printf "%s\\n" "$HPCTL_POLICY" "$HPCTL_SPARES" "$HPCTL_TIERS" "$HPCTL_SAVE_SIGNAL"\n'
        "kill -USR2 $$\n"
    )
    code, out, _ = job.run(shell=shell, tail=tail)
    assert (code, json.loads(out[0])) == (0, job.parts["policy"])
    assert (json.loads(out[2]), out[1], out[3]) == (["local:/it's/42", "s3://b/$p"], "2", "USR2")


@pytest.mark.parametrize("shell", SHELLS)
def test_what_another_job_was_asked_for_is_not_inherited(job, shell):
    names = ("POLICY", "SPARES", "TIERS", "SAVE_SIGNAL", "CHECKPOINT_DIR")
    tail = "".join(f'echo "${{HPCTL_{name}-unset}}"\n' for name in names)
    job.parts = {"ckpt": ""}
    code, out, _ = job.run(shell=shell, tail=tail, **{f"HPCTL_{name}": "old" for name in names})
    assert (code, out) == (0, ["unset"] * 5)


def test_program_that_resumes_itself_gets_no_resume_path(job):
    (generic(job.root, "step-1", 1) / "data").unlink()
    job.parts = {"resume": False}
    code, out, err = job.run(HPCTL_RESUME_FROM="/stale")
    assert (code, out[0], err) == (0, f"unset|{job.root}|0|2|a b c", "")
    shutil.rmtree(job.root)
    code, out, err = job.run()
    assert (code, out) == (STOP_EXIT_CODE, [])
    assert "is not there on this node" in err


@pytest.mark.slow
def test_the_newest_of_all_tiers_is_found(job):
    tier, other = job.tmp / "tier's", job.tmp / "own disk"
    generic(job.root, "step-1", 1)
    newest = generic(tier, "step-3", 3)
    near = generic(other, "step-4", 4)
    job.parts = {"tiers": (str(tier), f"{job.tmp}/{{job_id}}", f"local:{job.tmp}/replaced")}
    code, out, err = job.run()
    assert (code, out[0].split("|")[0]) == (0, str(newest)), err
    assert (job.tmp / "42").is_dir()
    job.parts["tiers"] = (*job.parts["tiers"], f"local:{other}")
    code, out, err = job.run(SLURM_JOB_NUM_NODES="1")
    assert (code, out[0].split("|")[0]) == (0, str(near)), err
    code, out, err = job.run(SLURM_JOB_NUM_NODES="2")
    assert (code, out[0].split("|")[0]) == (0, str(newest)), err


@pytest.mark.parametrize(("given", "exported"), [({}, "1"), ({"SLURM_KILL_BAD_EXIT": "0"}, "0")])
def test_a_rank_that_ends_badly_ends_its_step_unless_the_user_says_otherwise(job, given, exported):
    code, parts, _ = job.run(tail="sh -c 'echo $SLURM_KILL_BAD_EXIT'\n", **given)
    assert (code, parts[-1]) == (0, exported)


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("given", "exported"),
    [
        ({}, "2000 2000 1"),
        ({"TORCH_FR_BUFFER_SIZE": "7"}, "7 unset 1"),
        ({"TORCH_NCCL_TRACE_BUFFER_SIZE": "", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"}, "unset  0"),
    ],
)
def test_ranks_keep_a_flight_recorder_unless_the_user_says_otherwise(job, shell, given, exported):
    names = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE", "TORCH_NCCL_DUMP_ON_TIMEOUT"
    words = " ".join(f"${{{name}-unset}}" for name in names)
    code, parts, _ = job.run(shell=shell, tail=f"sh -c 'echo \"{words}\"'\n", **given)
    assert (code, parts[-1]) == (0, exported)


@pytest.mark.parametrize("shell", SHELLS)
def test_fast_saves_without_helpers_leave_the_shared_checkpoints(job, shell):
    newest = generic(job.root, "step-3", 3)
    job.parts = {"fast": FastCheckpointSaveOptions(f"{job.tmp}/nvme", flush_s=60)}
    tail = 'echo "${HPCTL_FAST_DIR-unset} $HPCTL_FAST_OPTIONS ${HPCTL_FAST_SPEC-none}"\n'
    code, out, err = job.run(shell=shell, tail=TAIL + tail, SLURM_JOB_NODELIST="")
    assert (code, out[0]) == (0, f"{newest}|{job.root}|0|2|a b c")
    assert out[-1] == f'unset {{"dir":"{job.tmp}/nvme","flush_s":60}} none'
    assert (
        "hpctl: fast saves are off: cannot start fast saves: this job was not submitted with "
        "`hpctl sbatch --fast-dir`"
    ) in err
    assert f"the program saves to {job.root} (HPCTL_FAST_DIR is not set)" in err


def reader(job: Job) -> Path:
    """Have a program that writes down how it is called stand for hpctl's interpreter."""
    called = job.tmp / "called"
    fake = job.tmp / "reader"
    fake.write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >>{called}\nexit 5\n')
    fake.chmod(0o755)
    job.python = str(fake)
    job.parts = {"ckpt": ""}
    return called


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("tail", "code", "read"),
    [
        ("true\n", 0, ""),
        ("exit 0\n", 0, ""),
        ("sh -c 'exit 7'\n", 7, "7\n"),
        ("exit 143\n", 143, "143\n"),
        ("unset HPCTL_PYTHON\nexit 3\n", 3, ""),
        ("sh -c 'kill -9 $$'\n", 137, "137\n"),
    ],
)
@pytest.mark.parametrize("flags", ["-eu", "-"])
def test_the_end_is_read_where_it_failed_and_the_exit_code_is_kept(
    job, shell, tail, code, read, flags
):
    called = reader(job)
    found, _, _ = job.run(shell=shell, flags=flags, tail=tail)
    assert found == code
    assert (called.read_text() if called.exists() else "") == read


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("given", "begins"),
    [
        ({}, "unset"),
        ({"SLURM_EXPORT_ENV": "ALL"}, "ALL"),
        ({"SLURM_EXPORT_ENV": "ALL,A=1"}, "ALL,A=1"),
        ({"SLURM_EXPORT_ENV": "NONE"}, "HPCTL_RESUME_FROM,HPCTL_SKIP,HPCTL_CHECKPOINT_DIR,"),
        ({"SLURM_EXPORT_ENV": "A=1,B"}, "A=1,B,HPCTL_RESUME_FROM,HPCTL_SKIP,HPCTL_CHECKPOINT_DIR,"),
    ],
)
def test_steps_without_the_environment_get_what_hpctl_sets(job, shell, given, begins):
    _, out, _ = job.run(shell=shell, tail='echo "${SLURM_EXPORT_ENV-unset}"\n', **given)
    assert out[0].startswith(begins)
    assert ("HPCTL" in out[0]) == ("HPCTL" in begins)


def test_steps_without_the_environment_get_every_variable_that_the_job_may_have(job):
    text = Path(preamble.__file__).with_name("preamble.sh").read_text()
    _, begin, rest = text.partition("    unset HPCTL_RESUME_FROM")
    assert begin
    names = {"HPCTL_RESUME_FROM", *re.findall(r"HPCTL_[A-Z_]+", rest.partition("export")[0])}
    _, out, _ = job.run(tail='echo "$SLURM_EXPORT_ENV"\n', SLURM_EXPORT_ENV="NONE")
    assert names <= {*out[0].split(",")}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_python_of_a_training_environment_is_not_hpctl_s(job, shell):
    newest = generic(job.root, "step-3", 3)
    (job.tmp / "msgspec.py").write_text("raise SystemExit('of another Python')\n")
    theirs = {"PYTHONPATH": str(job.tmp), "PYTHONHOME": "/none"}
    kept = 'echo "$PYTHONHOME $PYTHONPATH"\n'
    _, out, _ = job.run(shell=shell, tail=TAIL + kept, **theirs)
    assert out[0].startswith(f"{newest}|")
    assert out[-1] == f"/none {job.tmp}"
    log = job.tmp / "job.log"
    failed = "KeyError: 1' >&2; exit 1"
    traceback = 'Traceback (most recent call last):\n  File "/u/a.py", line 1, in main\n'
    tail = f'exec 2>"{log}"; HPCTL_LOG_START=; echo \'{traceback}{failed}\n'
    job.run(shell=shell, tail=tail, **theirs)
    assert "the script ended with exit code 1, crash: KeyError in main (a.py)" in log.read_text()


def test_where_the_run_begins_in_its_log_is_noted(job):
    reader(job)
    log = job.tmp / "job.log"
    log.write_text("what the run before wrote\n")
    job.run(tail=f'echo "$HPCTL_LOG_START" >{job.tmp}/noted\n')
    assert len((job.tmp / "noted").read_text().split()) == 2


def test_with_a_supervisor_the_end_is_the_supervisor_s_to_read(job):
    called = reader(job)
    job.parts = {"ckpt": "", "supervised": True}
    assert job.run(tail="exit 7\n")[0] == 7
    assert not called.exists()


def test_declared_files_are_resumed_from(job):
    (job.root / "w-7.raw").write_bytes(b"weights")
    os.utime(job.root / "w-7.raw", (1_700_000_000, 1_700_000_000))
    code, out, err = job.run()
    assert (code, out[0].split("|")[0]) == (0, "unset")
    assert "submit with --checkpoint-files 'w-{step}.raw'" in err
    job.parts["files"] = ("w-{step}.raw",)
    code, out, err = job.run(HPCTL_CHECKPOINT_FILES='["another job"]')
    assert (code, out[0].split("|")[0]) == (0, f"{job.root}/w-7.raw")
    assert "unproven of" in err


@pytest.mark.parametrize("shell", SHELLS)
def test_script_waits_only_for_its_children(job, shell):
    """What tells of the first save ends with the script, and `wait` does not know it."""
    code, out, _ = job.run(shell=shell, tail='wait; echo "waited $?"; jobs\n')
    assert (code, out) == (0, ["waited 0"])


FLIGHT = ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"]
TELL_FLIGHT = ("sh -c 'echo \"%s\"'\n") % " ".join(f"${{{name}-unset}}" for name in FLIGHT)  # noqa: UP031


@pytest.mark.parametrize("shell", SHELLS)
def test_ranks_of_a_script_dump_to_one_path_a_run(job, shell):
    kept = job.root / ".hpctl"
    kept.mkdir()
    for name in ("script-42.0.flight-3", "script-42.1.flight-3", "script-42.2.flight-3"):
        (kept / name).write_text("old")
    prefix = f"{kept}/script-42.2.flight-"
    code, parts, err = job.run(shell=shell, tail=TELL_FLIGHT, SLURM_RESTART_COUNT="2")
    assert (code, parts[-1]) == (0, f"{prefix} {prefix}"), err
    assert sorted(path.name for path in kept.iterdir()) == ["script-42.1.flight-3"]


@pytest.mark.parametrize("shell", SHELLS)
def test_ranks_of_a_script_without_checkpoints_dump_to_its_owners_directory(job, shell):
    job.parts = {"ckpt": ""}
    home = job.tmp / "home"
    prefix = f"{home}/.local/state/hpctl/script-42.0.flight-"
    given = {"HOME": str(home), "XDG_STATE_HOME": ""}
    code, parts, err = job.run(shell=shell, tail=TELL_FLIGHT, **given)
    assert (code, parts[-1]) == (0, f"{prefix} {prefix}"), err


@pytest.mark.parametrize("name", FLIGHT)
def test_the_users_own_path_of_dumps_stays(job, name):
    code, parts, _ = job.run(tail=TELL_FLIGHT, **{name: "/own/dump-"})
    assert code == 0
    assert sorted(parts[-1].split()) == ["/own/dump-", "unset"]


def test_a_job_that_is_submitted_inside_another_has_its_own_path_of_dumps(job):
    other = {"HPCTL_FLIGHT_PREFIX": "/other/job-", FLIGHT[0]: "/other/job-"}
    code, parts, _ = job.run(tail=TELL_FLIGHT, **other)
    assert code == 0
    assert "/other/job-" not in parts[-1]


def test_where_no_directory_can_be_made_the_script_continues(job):
    job.parts = {"ckpt": ""}
    (job.tmp / "file").write_text("")
    code, parts, _ = job.run(tail=TELL_FLIGHT, XDG_STATE_HOME=str(job.tmp / "file"))
    assert (code, parts[-1]) == (0, "unset unset")
