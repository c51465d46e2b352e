"""Marks: what they cover, what they bind to, and hostile files in their place."""

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpctl.checkpoints import hpctl_checkpoint, search
from hpctl.checkpoints.command import checkpoint
from hpctl.checkpoints.files import STARTS, record_job_start
from hpctl.checkpoints.hpctl_checkpoint import MARKS
from hpctl.checkpoints.marks import (
    MOST_BYTES,
    CheckpointMark,
    find_median_write_time,
    read_checkpoint_marks,
    write_checkpoint_mark_file,
)
from hpctl.checkpoints.resume import (
    CheckpointSearchPlaces,
    NoCompleteCheckpointError,
    find_resume_point,
)
from hpctl.toolkit.compat import UTC
from tests.checkpoints.checkpoint_files import generic, torch_save
from tests.cli.test_json_contract import holds

AT = datetime(2026, 11, 28, 6, 41, tzinfo=UTC)
SECOND = 10**9


def age(path: Path, ns: int) -> None:
    """Give a checkpoint this time."""
    for each in [path, *path.rglob("*")]:
        os.utime(each, ns=(ns, ns))


def save(root: Path, step: int, ns: int = 0) -> Path:
    made = generic(root, f"step-{step}", step)
    if ns:
        age(made, ns)
    return made


def go_back(root: Path, after: int, ns: int = 0, **more: object) -> Path:
    """Mark what is saved after a step, until the next start."""
    mark = CheckpointMark(True, after + 1, "alice", AT, why="loss is NaN", until_start=True, **more)
    path = write_checkpoint_mark_file(root, mark)
    if ns:
        os.utime(path, ns=(ns, ns))
    return path


def start(root: Path, ns: int) -> None:
    with (root / STARTS).open("a") as file:
        file.write(f"{ns}\n")


def newest(root: Path) -> int | None:
    found = search.find_newest_complete_checkpoint_in_tiers(root).found
    return found.step if found else None


def test_what_is_saved_after_a_step_is_passed_over_and_said(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step)
    go_back(tmp_path, 20)
    found = search.find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert found.found is not None
    assert found.found.step == 20
    assert [(p.path.name, p.why) for p in found.passed_over] == [
        (name, "marked as poisoned by alice, 2026-11-28 06:41 UTC: loss is NaN")
        for name in ("step-40", "step-30")
    ]
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("step")) == [
        "step-10", "step-20", "step-30", "step-40",
    ]  # fmt: skip


def test_a_mark_holds_until_the_next_start_and_not_for_what_is_saved_then(tmp_path):
    save(tmp_path, 20, 100 * SECOND)
    save(tmp_path, 30, 110 * SECOND)
    start(tmp_path, 90 * SECOND)
    go_back(tmp_path, 20, 120 * SECOND)
    save(tmp_path, 40, 130 * SECOND)  # by the run that ends
    assert newest(tmp_path) == 20
    start(tmp_path, 140 * SECOND)
    assert newest(tmp_path) == 20
    save(tmp_path, 30, 150 * SECOND)
    assert newest(tmp_path) == 30, "the step is saved again by the run that went back"
    start(tmp_path, 160 * SECOND)
    save(tmp_path, 40, 170 * SECOND)
    assert newest(tmp_path) == 40


def test_a_file_that_is_added_later_does_not_take_a_mark_back(tmp_path):
    save(tmp_path, 20, 100 * SECOND)
    poisoned = save(tmp_path, 30, 110 * SECOND)
    go_back(tmp_path, 20, 120 * SECOND)
    start(tmp_path, 130 * SECOND)
    (poisoned / "eval.json").write_text("{}")
    assert newest(tmp_path) == 20
    assert find_median_write_time([(10, 5), (1, 9), (10, 3)]) == 5
    assert find_median_write_time([]) == 0


def test_a_clean_mark_takes_an_earlier_one_back_for_its_step(tmp_path):
    for step in (20, 30, 40):
        save(tmp_path, step, 100 * SECOND)
    go_back(tmp_path, 20, 110 * SECOND)
    clean = write_checkpoint_mark_file(tmp_path, CheckpointMark(False, 30, "alice", AT, last=30))
    os.utime(clean, ns=(120 * SECOND, 120 * SECOND))
    assert newest(tmp_path) == 30
    go_back(tmp_path, 20, 130 * SECOND)
    assert newest(tmp_path) == 20


def test_where_all_are_marked_no_run_starts_over_them(tmp_path):
    save(tmp_path, 30)
    go_back(tmp_path, 20)
    with pytest.raises(
        NoCompleteCheckpointError, match="complete and not marked: step-30: marked as poisoned"
    ):
        find_resume_point(CheckpointSearchPlaces(tmp_path), sleep=lambda _: None)


def test_the_batches_to_skip_are_reported_while_they_may_come(tmp_path):
    save(tmp_path, 20, 100 * SECOND)
    save(tmp_path, 30, 100 * SECOND)
    go_back(tmp_path, 20, 110 * SECOND, skip="20:32")
    assert find_resume_point(CheckpointSearchPlaces(tmp_path)).skip == "20:32"
    save(tmp_path, 30)
    assert find_resume_point(CheckpointSearchPlaces(tmp_path)).skip == "20:32"
    save(tmp_path, 40)
    assert find_resume_point(CheckpointSearchPlaces(tmp_path)).skip == ""
    go_back(tmp_path, 30, skip="")
    point = find_resume_point(CheckpointSearchPlaces(tmp_path))
    assert (point.step, point.skip) == (30, ""), "the next going back says that none are left out"


def _link(mark: Path) -> None:
    real = mark.with_name("real")
    mark.rename(real)
    mark.symlink_to(real)


def _fifo(mark: Path) -> None:
    mark.unlink()
    os.mkfifo(mark)


def _huge(mark: Path) -> None:
    mark.write_text(mark.read_text() + " " * MOST_BYTES)


HOSTILE = {
    "a link": _link,
    "a fifo": _fifo,
    "huge": _huge,
    "no JSON": lambda mark: mark.write_text("{"),
    "binary": lambda mark: mark.write_bytes(b"\xff\x00"),
    "deep": lambda mark: mark.write_text("[" * 9000),
    "other types": lambda mark: mark.write_text('{"poisoned":1,"first":"x","by":2,"at":3}'),
    "a skip for the shell": lambda mark: mark.write_text(
        json.dumps(
            {"poisoned": True, "first": 1, "by": "x", "at": AT.isoformat(), "skip": "$(id):1"}
        )
    ),
    "a directory": lambda mark: (mark.unlink(), mark.mkdir()),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_mark_loses_its_effect_and_is_said_and_others_keep_theirs(tmp_path, kind):
    for step in (10, 20, 30):
        save(tmp_path, step)
    HOSTILE[kind](go_back(tmp_path, 5))
    go_back(tmp_path, 20)
    found = search.find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert found.found is not None
    assert found.found.step == 20
    (flaw,) = found.marks.flaws
    assert "has no effect: " in flaw
    result = CliRunner().invoke(checkpoint, ["last", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path}/step-20\n")
    assert "has no effect: " in result.stderr


def test_marks_of_another_user_have_no_effect(tmp_path, monkeypatch):
    save(tmp_path, 20)
    save(tmp_path, 30)
    path = go_back(tmp_path, 20)
    real = os.geteuid()
    if real:
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, 65534)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    os.chown(tmp_path, 12345, -1)
    os.chown(tmp_path / MARKS, 12345, -1)
    marks = read_checkpoint_marks([tmp_path])
    assert (marks.placed, len(marks.flaws)) == ((), 1)
    assert "user 65534 owns it" in marks.flaws[0]
    os.chown(tmp_path / MARKS, 65534, -1)
    assert "user 65534 owns it" in read_checkpoint_marks([tmp_path]).flaws[0]


@pytest.mark.parametrize("kind", ["link", "file"])
def test_a_directory_of_marks_that_is_none_costs_no_resume(tmp_path, kind):
    save(tmp_path, 30)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    go_back(elsewhere, 20)
    if kind == "link":
        (tmp_path / MARKS).symlink_to(elsewhere / MARKS)
    else:
        (tmp_path / MARKS).write_text("x")
    assert newest(tmp_path) == 30
    (flaw,) = read_checkpoint_marks([tmp_path]).flaws
    assert flaw.endswith("have no effect: it is not a directory")
    with pytest.raises(OSError, match="not a directory"):
        write_checkpoint_mark_file(tmp_path, CheckpointMark(True, 1, "x", AT))


def test_marks_show_nothing_that_a_terminal_obeys(tmp_path):
    save(tmp_path, 20)
    save(tmp_path, 30)
    write_checkpoint_mark_file(
        tmp_path, CheckpointMark(True, 30, "\x1b[2J", AT, last=30, why="\x9b" + "x" * 900)
    )
    (row, _) = search.list_checkpoints(tmp_path)
    assert row.mark is not None
    assert row.mark.text.isprintable()
    assert len(row.mark.mark.why) <= 500


def test_a_single_file_is_marked_too(tmp_path):
    for step in (10, 20):
        (tmp_path / f"ckpt_{step}.pt").write_bytes(torch_save({"step": step}))
    go_back(tmp_path, 10)
    assert newest(tmp_path) == 10


def mark(*arguments: object):
    # No line wraps, however long the directory's name.
    environ = {"COLUMNS": "1000"}
    return CliRunner().invoke(checkpoint, ["mark", *map(str, arguments)], env=environ)


def test_the_command_marks_and_lists_who_when_and_why(tmp_path):
    for step in (10, 20):
        save(tmp_path, step)
    done = mark(tmp_path, 20, "--why", "loss is NaN")
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"step 20: no run resumes from {tmp_path}/step-20; nothing is deleted\n"
    listed = CliRunner().invoke(checkpoint, ["ls", str(tmp_path)])
    first, second = listed.stdout.splitlines()
    assert "step 20" in first
    assert "complete (sizes match); passed over: marked as poisoned by " in first
    assert first.endswith(": loss is NaN")
    assert "passed over" not in second
    rows = json.loads(CliRunner().invoke(checkpoint, ["ls", str(tmp_path), "--json"]).stdout)
    assert rows["checkpoints"][0]["mark"]["why"] == "loss is NaN"
    assert rows["checkpoints"][1]["mark"] is None
    assert rows["checkpoints"][0]["mark"].keys() == {"by", "at", "why", "path"}
    again = mark(tmp_path, 20, "--clean")
    assert again.stdout == f"step 20: a run may resume from {tmp_path}/step-20 again\n"
    assert newest(tmp_path) == 20


def test_verify_shows_the_mark_of_one_checkpoint(tmp_path):
    for step in (10, 20):
        save(tmp_path, step)
    assert mark(tmp_path, 20, "--why", "loss is NaN").exit_code == 0

    def verify(step: int, *options: str):
        return CliRunner().invoke(checkpoint, ["verify", f"{tmp_path}/step-{step}", *options])

    marked = verify(20)
    assert marked.exit_code == 1
    assert "complete (sizes match); passed over: marked as poisoned by " in marked.stdout
    (row,) = json.loads(verify(20, "--json").stdout)["checkpoints"]
    assert (row["complete"], row["mark"]["why"]) == (True, "loss is NaN")
    other = verify(10)
    assert (other.exit_code, "passed over" in other.stdout) == (0, False)


def test_a_mark_in_s3_alone_is_refused_with_what_counts_there():
    refused = mark("s3://bucket/run", 20)
    assert "cannot mark a checkpoint in S3" in str(refused.exception)
    assert "hpctl resume JOB --from-step N" in refused.exception.hint


def test_what_the_command_prints_is_documented(tmp_path):
    save(tmp_path, 20)
    holds("checkpoint-mark", mark(tmp_path, 20, "--json").stdout)


def test_the_command_names_the_steps_that_there_are(tmp_path):
    for step in (10, 20):
        save(tmp_path, step)
    assert mark(tmp_path, 20).exit_code == 0
    wrong = mark(tmp_path, 15)
    assert str(wrong.exception) == f"there is no complete checkpoint of step 15 in {tmp_path}"
    assert wrong.exception.hint == "There are steps 10. Marked as poisoned: 20."
    assert "cannot read" in str(mark(tmp_path / "away", 15).exception)


def test_all_marked_is_no_complete_checkpoint_for_a_script(tmp_path):
    save(tmp_path, 20)
    assert mark(tmp_path, 20).exit_code == 0
    assert CliRunner().invoke(checkpoint, ["ls", str(tmp_path)]).exit_code == 1
    last = CliRunner().invoke(checkpoint, ["last", "--export", str(tmp_path)])
    assert last.exit_code == 1
    assert last.stdout == (
        f"incomplete 1 checkpoints in {tmp_path}, none of them complete and not marked as"
        " poisoned\n"
    )


def _publish(root: Path, step: int, text: str) -> None:
    with hpctl_checkpoint.saving(step, root, ranks=1) as saving:
        saving.path("state").write_text(text)


def _publish_by_shell(root: Path, step: int, text: str) -> None:
    made = root / f"step-{step:08d}.tmp-1-{text}"
    made.mkdir()
    (made / "state").write_text(text)
    script = Path(hpctl_checkpoint.__file__).with_suffix(".sh")
    subprocess.run(["sh", script, made, str(step)], check=True, timeout=60)


@pytest.mark.parametrize("publish", [_publish, _publish_by_shell], ids=["python", "shell"])
def test_a_save_of_a_step_that_was_passed_over_takes_its_name(tmp_path, publish):
    publish(tmp_path, 20, "good")
    publish(tmp_path, 30, "poisoned")
    state = tmp_path / "step-00000030" / "state"
    publish(tmp_path, 30, "second")
    assert state.read_text() == "poisoned", "of two saves of one start the first wins"
    past = state.stat().st_mtime_ns - SECOND
    for step in (20, 30):
        age(tmp_path / f"step-{step:08d}", past)
    go_back(tmp_path, 20)
    os.utime(next((tmp_path / MARKS).iterdir()), ns=(past + 1000, past + 1000))
    record_job_start(tmp_path)
    assert newest(tmp_path) == 20
    publish(tmp_path, 30, "new")
    assert state.read_text() == "new"
    found = search.find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert found.found is not None
    assert found.found.path == tmp_path / "step-00000030"
    kept = [path for path in tmp_path.iterdir() if "passed-over" in path.name]
    assert [(path / "state").read_text() for path in kept] == ["poisoned"]


def test_the_job_reads_what_to_skip_only_where_it_asks(tmp_path):
    save(tmp_path, 20)
    save(tmp_path, 30)
    go_back(tmp_path, 20, skip="20:22")
    command = [sys.executable, "-m", "hpctl", "checkpoint", "last", "--export", str(tmp_path)]
    for asked, expected in (({}, ""), ({"HPCTL_EXPORT_SKIP": "1"}, "skip 20:22 ")):
        environment = {**os.environ, **asked}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert done.stdout == f"{expected}found {tmp_path}/step-20\n"
