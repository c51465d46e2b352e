"""Files of no known format: they are told of, with what to do, and never opened."""

import builtins
import json
import os

from click.testing import CliRunner

from hpctl.checkpoints import hpctl_checkpoint
from hpctl.checkpoints.resume import CheckpointSearchPlaces, find_resume_point
from hpctl.checkpoints.search import find_newest_complete_checkpoint_in_tiers
from hpctl.cli.main import cli
from hpctl.jobs.sbatch import command

HELPER = "`hpctl checkpoint helper`"


def own(directory, count=11):
    directory.mkdir(parents=True)
    for number in range(count):
        (directory / f"part-{number}.json").write_text("{}")
    return directory


def run(*args) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["checkpoint", *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


def test_every_command_says_what_is_there_and_what_to_do(tmp_path):
    own(tmp_path / "step-900", 9)
    newest = own(tmp_path / "step-1000")
    text = f"hpctl: 11 files in {newest} (and 1 more), no known format; "
    code, out, err = run("ls", tmp_path)
    assert (code, out.splitlines()[0]) == (1, f"{newest}  11 files, no known format")
    assert err.startswith(text)
    assert HELPER in err
    code, out, err = run("verify", newest)
    assert (code, out) == (1, f"{newest}  11 files, no known format\n")
    assert err.startswith(f"hpctl: 11 files in {newest}, no known format; ")
    for words in ((), ("--export",)):
        code, out, err = run("last", *words, tmp_path)
        assert (code, out) == (1, "none\n" if words else "")
        assert err.startswith(text)
        assert err.count("\n") == 1
    rows = json.loads(run("ls", "--json", tmp_path)[1])["checkpoints"]
    assert [row["why"] for row in rows] == ["11 files, no known format", "9 files, no known format"]
    assert [(row["claimed"], row["complete"]) for row in rows] == [(False, False)] * 2


def test_nothing_is_said_where_there_is_nothing_or_something_better(tmp_path):
    (tmp_path / "step-5").mkdir()
    own(tmp_path / "step-6.tmp-7")
    own(tmp_path / ".hpctl", 1)  # the history of `hpctl run`
    own(tmp_path / "lightning_logs", 1)
    for name in (".hidden", "slurm-12.out", "attempts.jsonl", "events.out.tfevents.1.n1"):
        (tmp_path / name).touch()
    point = find_resume_point(CheckpointSearchPlaces(tmp_path))
    assert (
        find_newest_complete_checkpoint_in_tiers(tmp_path).unrecognized_files_note,
        point.unknown,
    ) == ("", "")
    own(tmp_path / "step-8")
    with hpctl_checkpoint.saving(7, tmp_path, ranks=1) as save:
        save.path("data").write_bytes(b"x")
    found = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert (found.verdict, found.unrecognized_files_note) == ("found", "")
    (tmp_path / "step-00000007/data").unlink()
    found = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert (found.verdict, found.unrecognized_files_note) == ("incomplete", "")
    assert [each.path.name for each in found.passed_over if each.claimed] == ["step-00000007"]


def test_root_does_not_look_into_a_users_directory_when_it_submits(tmp_path, monkeypatch):
    own(tmp_path / "step-5")
    real, owner = os.stat, 1666

    def stat(path, **args) -> os.stat_result:
        given = list(real(path, **args))
        given[4] = owner
        return os.stat_result(given)

    monkeypatch.setattr(command.os, "stat", stat)
    monkeypatch.setattr(command.os, "geteuid", lambda: 0)
    assert command.describe_unrecognized_checkpoint_files(str(tmp_path)) == ""
    monkeypatch.undo()
    assert "11 files" in command.describe_unrecognized_checkpoint_files(str(tmp_path))


def test_nothing_of_no_known_format_is_opened(tmp_path, monkeypatch):
    """A FIFO would hold its reader, and a device may do anything."""
    (tmp_path / "step-1").mkdir()
    for number in range(11):
        os.mkfifo(tmp_path / f"step-1/{number}.json")
        os.mkfifo(tmp_path / f"{number}.npy")

    def refused(*args, **more) -> None:
        raise AssertionError(f"opened: {args}")

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(builtins, "open", refused)
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert search.verdict == "none"
    assert "11 files in" in search.unrecognized_files_note
