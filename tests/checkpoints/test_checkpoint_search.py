"""The newest whole checkpoint, whatever names, times and pointers say."""

import json
import os

import pytest
from click.testing import CliRunner

from hpctl.checkpoints import search as last
from hpctl.checkpoints.fast.spec import META
from hpctl.checkpoints.fetch import RENAMED
from hpctl.checkpoints.files import STARTS
from hpctl.checkpoints.run_records import HISTORIES
from hpctl.checkpoints.search import find_newest_complete_checkpoint_in_tiers
from hpctl.cli.main import cli
from tests.checkpoints.checkpoint_files import generic
from tests.gpu.recordings import read_json


def why(search: last.CheckpointSearchResult) -> dict[str, str]:
    return {each.path.name: each.why for each in search.passed_over}


def test_newest_step_wins_whatever_it_is_called_and_whenever_written(tmp_path) -> None:
    newest = generic(tmp_path, "aaa", 30)
    generic(tmp_path, "step-99", 10)
    generic(tmp_path, "latest", 20)
    (tmp_path / "latest.txt").write_text("step-99")
    os.utime(newest, (1, 1))
    os.utime(newest / "manifest.json", (1, 1))
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert (search.found.path, search.found.step, search.verdict) == (newest, 30, "found")
    assert search.passed_over == ()


def test_falls_back_and_says_why(tmp_path) -> None:
    generic(tmp_path, "step-1", 1)
    generic(tmp_path, "step-2", 2).joinpath("data").write_bytes(b"short")
    (generic(tmp_path, "step-3", 3) / "manifest.json").write_bytes(b"{")
    generic(tmp_path, "step-4.tmp-9.0.0-ab", 4)
    (tmp_path / "step-5").mkdir()
    (tmp_path / "notes.txt").write_text("not a directory")
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert search.found.step == 1
    reasons = why(search)
    assert set(reasons) == {"step-2", "step-3", "step-4.tmp-9.0.0-ab", "step-5"}
    assert reasons["step-2"] == "data is cut off: it has 5 of 100 bytes"
    assert "not JSON" in reasons["step-3"]
    assert "temporary" in reasons["step-4.tmp-9.0.0-ab"]


def test_none_is_not_incomplete_is_not_unreadable(tmp_path) -> None:
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "none"
    (tmp_path / "step-1").mkdir()
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "none"
    (generic(tmp_path, "step-2", 2) / "data").unlink()
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "incomplete"
    (tmp_path / "step-1/manifest.json").symlink_to("manifest.json")
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "unreadable"
    generic(tmp_path, "step-0", 0)
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "found"


def test_what_hpctl_keeps_beside_checkpoints_is_not_listed(tmp_path) -> None:
    """In sandbox-on-gpu.json, `checkpoint ls` lists `.hpctl` as an unknown format."""
    recorded = read_json("sandbox-on-gpu.json")["spare"]["checkpoint_ls"]["out"]
    assert "/.hpctl  not complete" in recorded
    generic(tmp_path, "step-1", 1)
    for name in (HISTORIES, META, f"{RENAMED}step-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("x")
    (tmp_path / STARTS).write_text("1\n")
    (tmp_path / ".hpctlx").mkdir()
    listed = {row.path.name for row in last.list_checkpoints(tmp_path)}
    assert listed == {"step-1", ".hpctlx"}, "a name of somebody else's is shown"


def test_a_name_that_no_shell_line_can_carry_is_passed_over(tmp_path) -> None:
    generic(tmp_path, "step-9\nfound /etc", 9)
    generic(tmp_path, "step-8", 8)
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).found.step == 8


def run(*text: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(cli, ["checkpoint", *text])
    return result.exit_code, result.stdout, result.stderr


def test_last(tmp_path) -> None:
    text = f"hpctl: no checkpoints in {tmp_path}\n"
    assert (run("last", str(tmp_path)), run("ls", str(tmp_path))) == ((1, "", text), (1, "", text))
    assert run("last", "--export", str(tmp_path))[:2] == (1, "none\n")
    good = generic(tmp_path, "step-1", 1)
    bad = generic(tmp_path, "step-2", 2)
    (bad / "data").unlink()
    code, out, err = run("last", str(tmp_path))
    assert (code, out, err) == (0, f"{good}\n", f"hpctl: passed over {bad}: data is missing\n")
    assert run("last", "--export", str(tmp_path))[:2] == (0, f"found {good}\n")
    code, out, _ = run("last", "--json", str(tmp_path))
    document = json.loads(out)
    assert (document["schema"], document["verdict"]) == ("hpctl.checkpoint-last/1", "found")
    assert (document["found"]["path"], document["found"]["step"]) == (str(good), 1)
    (passed,) = document["passed_over"]
    assert (passed["path"], passed["why"], passed["claimed"]) == (str(bad), "data is missing", True)
    (good / "data").unlink()
    code, out, _ = run("last", "--export", str(tmp_path))
    assert code == 1
    assert out.startswith("incomplete 2 ")


def test_exit_codes(tmp_path) -> None:
    missing = str(tmp_path / "missing")
    for command in ("ls", "verify", "last"):
        assert run(command, missing)[0] == 3
        assert (run(command, missing, "--json")[0], run(command)[0]) == (3, 2)
    code, out, _ = run("last", "--export", missing)
    assert code == 3
    assert out.startswith("unreadable ")
    good = generic(tmp_path, "step-1", 1)
    assert (run("ls", str(tmp_path))[0], run("verify", str(good), "--deep")[0]) == (0, 0)
    (good / "data").write_bytes(b"y" * 100)
    assert run("verify", str(good))[0] == 0
    code, out, _ = run("verify", str(good), "--deep")
    assert code == 1
    assert "checksum" in out


def test_of_one_step_the_nearer_place_wins_and_of_two_the_newer_step(tmp_path) -> None:
    near, far, own = tmp_path / "near", tmp_path / "far", tmp_path / "own"
    mine, theirs, fast = (generic(place, "step-5", 5) for place in (near, far, own))
    assert run("last", str(near), str(far))[1] == f"{mine}\n"
    assert run("last", str(far), "--tier", str(near))[1] == f"{theirs}\n"
    assert run("last", str(far), "--tier", f"local:{own}")[1] == f"{fast}\n"
    newer = generic(far, "step-6", 6)
    assert run("last", str(near), f"local:{own}", str(far))[1] == f"{newer}\n"
    (newer / "data").unlink()
    code, out, err = run("last", "--export", str(near), str(far), str(far))
    assert (code, out) == (0, f"found {mine}\n")
    assert err == f"hpctl: passed over {newer}: data is missing\n"


def test_a_place_that_cannot_be_read_is_never_none(tmp_path) -> None:
    near, gone = tmp_path / "near", tmp_path / "gone"
    near.mkdir()
    assert run("last", "--export", str(near), str(gone))[:2] == (
        3,
        f"unreadable {gone}: No such file or directory\n",
    )
    good = generic(near, "step-5", 5)
    code, out, err = run("last", "--json", str(near), str(gone))
    document = json.loads(out)
    assert (code, document["verdict"], document["found"]["path"]) == (0, "found", str(good))
    assert document["unseen"] == [{"place": str(gone), "why": "No such file or directory"}]
    code, out, err = run("last", str(near), str(gone))
    assert (code, out) == (0, f"{good}\n")
    assert "there may be a newer checkpoint where it cannot look" in err
    with pytest.raises(FileNotFoundError):
        find_newest_complete_checkpoint_in_tiers(gone)
    assert (
        find_newest_complete_checkpoint_in_tiers(
            [last.CheckpointTier(near), last.CheckpointTier(gone)]
        ).found
        is not None
    )


@pytest.mark.parametrize("place", ["s3:/bucket/x", "s3:bucket/x"])
def test_a_place_in_s3_with_a_slash_too_few(place: str) -> None:
    code, out, err = run("ls", place)
    assert (code, out) == (2, "")
    assert "did you mean s3://bucket/x?" in err
