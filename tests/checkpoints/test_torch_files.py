"""What the real torch writes, undisturbed: recognised, whole, and its checksums match."""

from pathlib import Path
from typing import Any

import pytest

from hpctl.jobs.checkpoints import search as last
from hpctl.jobs.checkpoints.search import Checkpoint, last_complete
from tests.checkpoints.torch_here import need

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns that there is no process group
TENSORS, LENGTH = 6, 60_000
torch: Any = None
dcp: Any = None


@pytest.fixture(autouse=True)
def libraries() -> None:
    global torch, dcp
    torch, dcp = need("torch"), need("torch.distributed.checkpoint")


def state(step: int) -> dict[str, object]:
    tensors = {f"w{n}": torch.full((LENGTH,), float(step * 10 + n)) for n in range(TENSORS)}
    return {**tensors, "global_step": step, "more": {"rate": 0.1}}


def save_dcp(root: Path, step: int) -> None:
    writer = dcp.FileSystemWriter(root / f"step-{step}", single_file_per_rank=False)
    dcp.save(state(step), storage_writer=writer, no_dist=True)


def save_file(root: Path, step: int) -> None:
    torch.save(state(step), root / f"step={step}.ckpt")


def test_what_torch_writes_is_whole_and_its_checksums_match(tmp_path: Path) -> None:
    save_dcp(tmp_path, 3)
    save_file(tmp_path, 4)
    dcp.save(state(5), checkpoint_id=tmp_path / "step-5", no_dist=True)
    rows = last.every(tmp_path, deep=True)
    assert [(row.format, row.step, row.deep) for row in rows if isinstance(row, Checkpoint)] == [
        ("torch-dcp", 5, True),
        ("lightning", 4, True),
        ("torch-dcp", 3, True),
    ]
    (tmp_path / "step-5/__0_0.distcp").unlink()
    assert [row.path.name for row in last_complete(tmp_path).passed_over] == ["step-5"]


def test_without_checksums_deep_says_so(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        save_file(tmp_path, 4)
    finally:
        torch.serialization.set_crc32_options(True)
    assert last_complete(tmp_path).verdict == "found"
    search = last_complete(tmp_path, deep=True)
    assert search.found is None
    assert "no checksums to compare" in search.passed_over[0].why


def test_the_stream_format_cannot_be_proved(tmp_path: Path) -> None:
    torch.save(state(1), tmp_path / "step=1.ckpt", _use_new_zipfile_serialization=False)
    assert "older stream" in last_complete(tmp_path).passed_over[0].why
