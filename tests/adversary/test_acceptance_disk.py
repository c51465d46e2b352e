"""The acceptance tests of disks, in a directory that users may write to and have prepared."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.nodes.acceptance import run
from hpctl.nodes.acceptance.result import AcceptanceTestResult
from tests.adversary.bed import STRANGER, drop
from tests.process import room

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user"),
]
FIO = """#!/bin/sh
for word do
  case $word in
    --directory=*) directory=${word#*=} ;;
    --filename=*) file=${word#*=} ;;
    --size=*) size=${word#*=} ;;
  esac
done
stat -c %a "$directory" >"$0.modes"
echo data >"$directory/$file" || { echo "fio: No space left on device"; exit 1; }
echo '{"jobs": [{"read": {"bw_bytes" : 7000000000}, "write": {"bw_bytes" : 3000000000}}]}'
"""
"""It writes where fio would, and prints what hpctl reads of fio."""


class Disk:
    """A disk that all users may write to. `point`: where it is mounted."""

    def __init__(self, base: Path, point: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.point = point
        self.fio = base / "fio"
        self.fio.write_text(FIO)
        self.fio.chmod(0o755)
        monkeypatch.setenv("PATH", f"{base}:{os.environ['PATH']}")

    def test(self) -> AcceptanceTestResult:
        """Run the quick test of a node's disk on this one."""
        row = run.load_acceptance_tests(Path("/nowhere"))["disk.quick"]
        command = [word.replace("/opt/dlami/nvme", str(self.point)) for word in row.command]
        return run.run_acceptance_test(
            replace(row, command=tuple(command), needs=run.AcceptanceRequirements()), 60.0, "n1"
        )

    def as_stranger(self, script: str) -> None:
        """Run a shell script on the disk as the stranger."""
        done = subprocess.run(
            ["sh", "-c", script], cwd=self.point, capture_output=True, check=False, **drop()
        )
        assert done.returncode == 0, done.stderr


@contextmanager
def mounted(size: str) -> Iterator[Path]:
    """Mount a sparse disk of that size, world-writable as /opt/dlami/nvme is."""
    with room() as base:
        point = base / "nvme"
        point.mkdir()
        options = f"size={size},mode=1777"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(point)], check=True)
        point.chmod(0o777)
        try:
            yield point
        finally:
            subprocess.run(["umount", "--lazy", str(point)], check=True)


def test_a_link_and_a_file_of_a_user_are_neither_written_nor_fail_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    host = os.uname().nodename.partition(".")[0]
    with mounted("16g") as point:
        disk = Disk(tmp_path, point, monkeypatch)
        name = f".hpctl-acceptance.{host}.abcdefgh"
        disk.as_stranger(f"ln -s {victim} .hpctl-acceptance; mkdir {name}; touch {name}/mine")
        left = point / f".hpctl-acceptance.{host}.ABCDEFGH"
        left.mkdir()
        (left / "data").touch()
        found = disk.test()
        assert (found.status, found.figures) == ("Passed", {"read_gbs": 7.0, "write_gbs": 3.0})
        assert victim.read_text() == "precious"
        assert sorted(path.name for path in point.iterdir()) == [".hpctl-acceptance", name]
        assert (point / name / "mine").stat().st_uid == STRANGER.pw_uid
        modes = Path(f"{disk.fio}.modes").read_text()
        assert modes.strip() == "700", "no user reads or changes what is measured"


@pytest.mark.parametrize("size", ["64m", "16g"], ids=["no room at first", "no room while it runs"])
def test_a_disk_that_a_user_has_filled_is_not_called_broken(
    size: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(size) as point:
        disk = Disk(tmp_path, point, monkeypatch)
        if size == "64m":
            disk.as_stranger("head -c 128M /dev/zero >ballast || true")
        else:
            text = FIO.replace('echo data >"$directory/$file"', "false")
            disk.fio.write_text(text)
        found = disk.test()
    assert found.status == "Skipped", found
    assert "has no room" in found.reason


def test_a_file_system_that_does_not_answer_is_called_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Disk(tmp_path, tmp_path / "gone", monkeypatch).test()
    assert (found.status, found.remedy) == ("Failed", "replace")


def test_a_disk_that_fails_is_called_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted("16g") as point:
        disk = Disk(tmp_path, point, monkeypatch)
        disk.fio.write_text("#!/bin/sh\necho 'fio: Input/output error'; exit 1\n")
        found = disk.test()
        assert list(point.iterdir()) == []
    assert (found.status, found.remedy) == ("Failed", "replace")
    assert "Input/output error" in found.reason
