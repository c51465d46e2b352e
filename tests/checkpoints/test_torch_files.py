"""What the real torch writes, undisturbed: recognised, whole, and its checksums match."""

from __future__ import annotations

import argparse
import shutil
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


def test_shapes_of_other_frameworks_written_by_torch(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    sizes = {"tensor_model_parallel_size": 1, "pipeline_model_parallel_size": 2}
    args = argparse.Namespace(**sizes, use_distributed_optimizer=True, params_dtype=torch.bfloat16)
    for rank in ("mp_rank_00_000", "mp_rank_00_001"):
        (tmp_path / "iter_0000010" / rank).mkdir(parents=True)
        saved = {"args": args, "iteration": 10, "model": model.state_dict()}
        torch.save(optimizer.state_dict(), tmp_path / "iter_0000010" / rank / "distrib_optim.pt")
        torch.save(saved, tmp_path / "iter_0000010" / rank / "model_optim_rng.pt")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    deep = tmp_path / "global_step20"
    deep.mkdir()
    states = {"module": model.state_dict(), "optimizer": None, "global_steps": 20}
    states |= {"dp_world_size": 2, "mp_world_size": 1, "ds_config": {"bf16": {"enabled": True}}}
    torch.save(states, deep / "mp_rank_00_model_states.pt")
    for rank in range(2):
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": optimizer.state_dict()}, deep / name)
    rows = last.every(tmp_path, deep=True)
    assert [(row.format, row.step) for row in rows if isinstance(row, Checkpoint)] == [
        ("deepspeed", 20),
        ("megatron-legacy", 10),
    ]
    (deep / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    shutil.rmtree(tmp_path / "iter_0000010/mp_rank_00_001")
    assert last_complete(tmp_path).verdict == "incomplete"
