"""Broken `latest` pointers: mended only when asked, all at once, with a backup."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hpctl.cli.main import cli
from hpctl.jobs.checkpoints import pointers
from tests.unit.checkpoint_files import deepspeed_files, torch_dist_files, write

MEGATRON = "latest_checkpointed_iteration.txt"


def test_a_directory_that_may_not_be_read_is_no_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    monkeypatch.setattr(os, "scandir", denied)
    monkeypatch.setattr(os, "listdir", denied)
    result = run("repair-latest", str(tmp_path))
    assert (result.exit_code, result.stderr) == (
        3,
        f"hpctl: cannot read {tmp_path}: Permission denied\n",
    )


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["checkpoint", *args])


def megatron(root: Path, *iterations: int) -> Path:
    for number in iterations:
        write(root / f"iter_{number:07d}", torch_dist_files())
    return root / MEGATRON


def backups(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(root.glob("*.hpctl-backup-*"))]


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (None, "there is none"),
        (b"", "is empty"),
        (b"4\x000", "which is no iteration"),
        (b"30\n", "names iter_0000030, which is not whole: __1_0.distcp is missing"),
        (b"90", "names iter_0000090, which is not there"),
    ],
)
def test_megatron(tmp_path: Path, said: bytes | None, why: str) -> None:
    pointer = megatron(tmp_path, 10, 20, 30)
    (tmp_path / "iter_0000030/__1_0.distcp").unlink()
    if said is not None:
        pointer.write_bytes(said)
    before = sorted(os.listdir(tmp_path))
    dry = run("repair-latest", str(tmp_path), "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert why in dry.stdout
    assert dry.stdout.endswith(" -> 20\n")
    assert sorted(os.listdir(tmp_path)) == before
    assert run("repair-latest", str(tmp_path)).exit_code == 2, "nobody can be asked"
    assert sorted(os.listdir(tmp_path)) == before
    done = run("repair-latest", str(tmp_path), "--yes")
    assert done.exit_code == 0, done.output
    assert pointer.read_bytes() == b"20"
    assert backups(tmp_path) == ([] if said is None else [said])
    again = run("repair-latest", str(tmp_path), "--yes")
    assert (again.exit_code, again.stdout) == (
        0,
        f"{pointer}: names iter_0000020, which is whole\n",
    )


def test_deepspeed(tmp_path: Path) -> None:
    write(tmp_path / "global_step40", deepspeed_files())
    torn = write(tmp_path / "global_step50", deepspeed_files(50))
    (torn / "bf16_zero_pp_rank_2_mp_rank_01_optim_states.pt").unlink()
    (tmp_path / "latest").write_text("global_step50")
    result = run("repair-latest", str(tmp_path), "--yes", "--json")
    (row,) = json.loads(result.stdout)["pointers"]
    assert result.exit_code == 0
    assert (row["content"], row["mended"]) == ("global_step40", True)
    assert Path(row["backup"]).read_text() == "global_step50"
    assert (tmp_path / "latest").read_text() == "global_step40"


def test_one_that_is_behind_is_not_broken(tmp_path: Path) -> None:
    pointer = megatron(tmp_path, 10, 20)
    pointer.write_text("10")
    result = run("repair-latest", str(tmp_path), "--yes")
    assert (result.exit_code, pointer.read_text()) == (0, "10")
    assert "iter_0000020 is newer and whole, too" in result.stdout
    assert run("repair-latest", str(tmp_path), "--yes", "--newest").exit_code == 0
    assert pointer.read_text() == "20"


def test_it_refuses_where_nothing_is_whole_and_where_nobody_can_tell(tmp_path: Path) -> None:
    pointer = megatron(tmp_path, 10)
    (tmp_path / "iter_0000010/__0_0.distcp").unlink()
    pointer.write_text("10")
    result = run("repair-latest", str(tmp_path), "--yes")
    assert (result.exit_code, pointer.read_text()) == (1, "10")
    assert "nothing here is whole" in result.stdout
    megatron(tmp_path, 20)
    (tmp_path / "iter_0000020/common.pt").unlink()
    (tmp_path / "iter_0000020/common.pt").symlink_to("common.pt")
    pointer.write_text("20")
    megatron(tmp_path, 5)
    result = run("repair-latest", str(tmp_path), "--yes")
    assert (result.exit_code, pointer.read_text()) == (3, "20")
    assert "cannot be judged" in result.stdout
    assert run("repair-latest", str(tmp_path / "missing"), "--yes").exit_code == 3
    (tmp_path / "empty").mkdir()
    assert run("repair-latest", str(tmp_path / "empty"), "--yes").exit_code == 0


def test_a_release_and_strange_names_are_left_alone(tmp_path: Path) -> None:
    pointer = megatron(tmp_path, 10)
    pointer.write_text("release")
    assert run("repair-latest", str(tmp_path), "--yes").exit_code == 0
    assert pointer.read_text() == "release"
    (tmp_path / "latest").write_text("../elsewhere")
    result = run("repair-latest", str(tmp_path), "--yes")
    assert (result.exit_code, (tmp_path / "latest").read_text()) == (1, "../elsewhere")


def test_a_writer_who_comes_between_wins(tmp_path: Path) -> None:
    pointer = megatron(tmp_path, 10, 20)
    pointer.write_text("")
    (repair,) = pointers.repairs(tmp_path)
    pointer.write_text("10")
    with pytest.raises(FileExistsError, match="somebody else"):
        pointers.mend(repair)
    assert pointer.read_text() == "10"


def test_last_mends_when_asked(tmp_path: Path) -> None:
    pointer = megatron(tmp_path, 10, 20)
    pointer.write_text("")
    assert run("last", "--export", str(tmp_path)).exit_code == 0
    assert pointer.read_text() == ""
    result = run("last", "--export", "--repair-latest", str(tmp_path))
    assert result.stdout == f"found {tmp_path}/iter_0000020\n"
    assert (
        f"{pointer} now says 20, the old one is kept as {MEGATRON}.hpctl-backup-" in result.stderr
    )
    assert pointer.read_text() == "20"
