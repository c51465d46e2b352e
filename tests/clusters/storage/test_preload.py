"""`hpctl cluster storage preload` with a stand-in for lfs: batches, progress, what goes wrong."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpctl.clusters.commands import storage
from hpctl.clusters.commands.storage import LustreLfsProgram, preload_files_from_s3
from hpctl.toolkit.errors import HpctlError
from tests.fakes import command_line

pytestmark = pytest.mark.integration

LFS = Path(__file__).parent / "lfs.py"
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path, monkeypatch) -> Make:
    """A directory of files and an lfs on PATH that knows which are released."""
    data, state = tmp_path / "data", tmp_path / "lfs.json"

    def made(count: int, released: int, looks: int = 1, broken: tuple[int, ...] = ()) -> Path:
        (data / "deep").mkdir(parents=True)
        names = [data / "deep" / f"f {i:04}" for i in range(count)]
        for name in names:
            name.write_bytes(b"x" * 1024)
        known = {
            "released": [str(n) for n in names[:released]],
            "broken": [str(names[i]) for i in broken], "looks": looks, "coming": {}, "calls": [],
        }  # fmt: skip
        state.write_text(json.dumps(known))
        return data

    program = tmp_path / "bin" / "lfs"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -S {LFS} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("LFS_STATE", str(state))
    return made


def calls(tmp_path, verb: str) -> list[int]:
    state = json.loads((tmp_path / "lfs.json").read_text())
    return [count for name, count in state["calls"] if name == verb]


def run(*text):
    return command_line.run("cluster", "storage", "preload", *text, width=200)


def looks(path: Path, **more) -> Iterator[storage.FilePreloadProgress]:
    return preload_files_from_s3(path, LustreLfsProgram(), sleep=lambda _: None, **more)


def test_only_what_is_missing_is_loaded_in_bounded_batches(make, tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "BATCH", 10)
    monkeypatch.setattr(storage, "UNDER_WAY", 20)
    seen = list(looks(make(40, 35, looks=2)))
    assert (seen[0].files, seen[0].released, seen[0].loaded) == (40, 35, 0)
    assert [s.loaded for s in seen] == sorted(s.loaded for s in seen)
    assert max(s.under_way for s in seen) <= 20
    last = seen[-1]
    assert last.done
    assert (last.loaded, last.loaded_bytes, last.failed) == (35, 35 * 1024, ())
    assert calls(tmp_path, "hsm_restore") == [10, 10, 10, 5]
    assert max(calls(tmp_path, "hsm_state")) <= 10


def test_what_is_there_a_dry_run_and_one_file_alone(make, tmp_path):
    data = make(3, 2)
    dry = run(str(data), "--dry-run")
    assert dry.stdout.splitlines()[1:] == ["2 are in S3 alone", "Dry run: nothing was done."]
    here = data / "deep" / "f 0002"
    assert run(str(here)).stdout == f"{here}: 1 files, 1 were here, 0 loaded (0 B)\n"
    assert calls(tmp_path, "hsm_restore") == []
    answer = json.loads(run(str(data / "deep" / "f 0000"), "--json").stdout)
    assert answer["schema"] == "hpctl.storage-preload/1"
    assert (answer["files"], answer["loaded"]) == (1, 1)


def test_a_file_that_will_not_load_is_named_and_the_others_load(make):
    data = make(5, 5, broken=(1,))
    done = run(str(data))
    assert done.exit_code == 1
    assert "4 loaded (4.0 KiB)" in done.stdout
    assert "f 0001: Cannot send HSM request" in done.stdout


def test_files_that_never_come_are_no_endless_wait(make):
    ticks = iter(range(1000))
    with pytest.raises(HpctlError, match="no file was loaded from S3 in the last 5 s") as caught:
        list(looks(make(2, 2, looks=10**6), clock=lambda: float(next(ticks)), stalled_s=5.0))
    assert "hsm_action" in caught.value.hint


def test_neither_an_odd_name_nor_a_file_deleted_meanwhile_ends_anything(make):
    data = make(5, 5, looks=2)
    (data / "a\nb").touch()
    seen = looks(data)
    next(seen)
    (data / "deep" / "f 0003").unlink()
    last = list(seen)[-1]
    assert (last.done, last.files) == (True, 6)


def test_no_lfs_and_no_such_path_are_one_clear_error(make, tmp_path, monkeypatch):
    make(1, 1)
    with pytest.raises(HpctlError, match=r"the path .*nothing does not exist"):
        list(looks(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HpctlError, match="Lustre's program lfs is not installed") as caught:
        LustreLfsProgram()
    assert "lustre-client" in caught.value.hint


def test_a_path_that_is_no_lustre_says_so(tmp_path, monkeypatch):
    program = tmp_path / "lfs"
    program.write_text("#!/bin/sh\necho 'Inappropriate ioctl for device (25)' >&2\nexit 25\n")
    program.chmod(0o755)
    (tmp_path / "f").touch()
    with pytest.raises(HpctlError, match="Inappropriate ioctl") as caught:
        list(preload_files_from_s3(tmp_path / "f", LustreLfsProgram(str(program))))
    assert "not on a Lustre file system" in caught.value.hint
