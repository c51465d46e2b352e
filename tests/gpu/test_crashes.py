"""The programs of the crashes part where there is no nvcc."""

import time
from pathlib import Path

import pytest

from tests.gpu import needs
from tests.gpu.context import Context, NotRun
from tests.gpu.parts import crashes
from tests.gpu.training.death_program import WAYS

pytestmark = pytest.mark.integration


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(
        name="crashes",
        folder=tmp_path,
        scratch=tmp_path,
        dry=False,
        until=time.monotonic() + 60.0,
        environment={},
        kmsg=tmp_path / "kmsg",
    )


def lack(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    for name in names:
        words, _ = needs.PROBES[name]
        monkeypatch.setitem(needs.PROBES, name, (words, lambda: False))


def test_without_nvcc_torch_compiles_the_kernels(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    lack(monkeypatch, "nvcc")
    monkeypatch.setitem(needs.PROBES, "torch", ("no torch", lambda: True))
    programs = crashes._find_programs(context)
    names = {way.__name__ for way in WAYS} | {"assert"}
    assert set(programs) == {"illegal", "misaligned", "assert", "trap"}
    for mode, command in programs.items():
        assert command[-3:] == [str(crashes.TORCH_PROGRAM), mode, "cuda"]
        assert mode in names
    assert "no nvcc" in (context.folder / "lines.txt").read_text()


def test_without_any_compiler_the_part_says_so(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    lack(monkeypatch, "nvcc", "torch")
    with pytest.raises(NotRun, match="no nvcc"):
        crashes._find_programs(context)
