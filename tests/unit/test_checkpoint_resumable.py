"""What every file vouches for and no program resumes from; and what only looks like trouble."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from hpctl.jobs.checkpoints.search import Checkpoint, PassedOver, judge, last_complete
from tests.unit.checkpoint_files import (
    dcp_files,
    hf_files,
    lightning_deepspeed_files,
    make,
    torch_save,
    write,
)


def reason(path: Path) -> str:
    row = judge(path)
    assert isinstance(row, PassedOver), row
    assert not row.unreadable, row
    return row.why


def newest(path: Path, seconds: int = 60) -> None:
    now = time.time_ns() + seconds * 10**9
    os.utime(path, ns=(now, now))


# --- Lightning ------------------------------------------------------------------------------------

_LIGHTNINGS = {"pytorch-lightning_version": "2.6.6"}


def test_lightnings_weights_alone_are_no_point_to_resume_from(tmp_path: Path) -> None:
    whole = {**_LIGHTNINGS, "global_step": 40, "optimizer_states": b"]", "lr_schedulers": b"]"}
    (tmp_path / "last.ckpt").write_bytes(torch_save(whole))
    weights = tmp_path / "best-step=50.ckpt"
    weights.write_bytes(torch_save({**_LIGHTNINGS, "global_step": 50, "state_dict": {}}))
    assert (
        reason(weights) == "best-step=50.ckpt has only the weights: Lightning cannot resume from it"
    )
    found = last_complete(tmp_path).found
    assert found.path.name == "last.ckpt"


def test_the_same_of_a_sharded_one(tmp_path: Path) -> None:
    meta = torch_save({**_LIGHTNINGS, "global_step": 40})
    path = write(tmp_path / "epoch=1-step=40.ckpt", {**dcp_files(), "meta.pt": meta})
    assert "meta.pt has only the weights" in reason(path)
    (path / "meta.pt").write_bytes(torch_save({**_LIGHTNINGS, "lr_schedulers": b"]"}))
    assert isinstance(judge(path), Checkpoint)


def test_lightning_with_deepspeed_is_not_taken_for_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "last.ckpt", lightning_deepspeed_files(40))
    found = last_complete(tmp_path).found
    assert (found.step, found.format) == (40, "lightning")
    (path / "checkpoint/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert "of data rank 1, model rank 0 is missing" in reason(path)
    assert last_complete(tmp_path).verdict == "incomplete"
    (path / "latest").unlink()  # killed in its first save: no reason to stop a job
    assert reason(path) == "latest is missing: it is written last"
    assert last_complete(tmp_path).verdict == "none"


def test_lightning_with_deepspeed_and_the_weights_alone(tmp_path: Path) -> None:
    sizes = {"dp_world_size": 2, "mp_world_size": 1, "global_steps": 9, "optimizer": None}
    model = torch_save({**sizes, **_LIGHTNINGS, "global_step": 40})
    files = lightning_deepspeed_files() | {"checkpoint/mp_rank_00_model_states.pt": model}
    path = write(tmp_path / "epoch=1-step=40.ckpt", files)
    assert "has only the weights" in reason(path)


# --- the HF Trainer -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pytorch_model_fsdp.bin", "model.safetensors"])
def test_each_model_file_of_the_trainer_may_be_the_one_it_loads(tmp_path: Path, name: str) -> None:
    # With FSDP's full state the Trainer loads the first; without an index it would not look for.
    path = write(tmp_path / "checkpoint-40", {name: b""} | hf_files())
    assert name in reason(path)


def test_a_model_of_fsdp_beside_an_adapter(tmp_path: Path) -> None:
    path = make(tmp_path, "hf-trainer, FSDP")
    shard = hf_files()["model-00001-of-00002.safetensors"]
    (path / "adapter_model.safetensors").write_bytes(shard)
    (path / "trainer_state.json").touch()
    assert isinstance(judge(path), Checkpoint)
    (path / "pytorch_model_fsdp_0/__1_0.distcp").unlink()
    assert "pytorch_model_fsdp_0: __1_0.distcp is missing" in reason(path)


@pytest.mark.parametrize("said", ["", "global_step30"])
def test_the_trainer_goes_by_deepspeeds_pointer(tmp_path: Path, said: str) -> None:
    path = make(tmp_path, "hf-trainer, DeepSpeed")
    (path / "latest").write_text(said)
    assert reason(path) == f"latest says {said!r}, which is not there"


@pytest.mark.parametrize("part", ["pytorch_model_fsdp_0", "optimizer_0"])
def test_a_part_of_fsdp_that_was_saved_over(tmp_path: Path, part: str) -> None:
    path = make(tmp_path, "hf-trainer, FSDP")
    newest(path / part / ".metadata")
    assert f"{part}/.metadata is newer than trainer_state.json" in reason(path)


@pytest.mark.parametrize("loss", ["0.1", "NaN"])
def test_a_long_history_of_the_trainer_is_no_defect(tmp_path: Path, loss: str) -> None:
    path = write(tmp_path / "checkpoint-40", hf_files())
    long = f'{{"loss": {loss}, "text": "'.encode() + b"x" * (65 << 20) + b'"}'
    raw = b'{"global_step": 40, "log_history": [' + long + b"]}"
    (path / "trainer_state.json").write_bytes(raw)
    assert isinstance(judge(path), Checkpoint)
    (path / "trainer_state.json").write_bytes(raw[:-1])
    assert "is not JSON" in reason(path)


def test_a_history_beyond_what_is_read_may_be_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoint-40", hf_files())
    os.truncate(path / "trainer_state.json", 1 << 30)
    assert last_complete(tmp_path).verdict == "unreadable"


def test_a_common_part_of_megatron_that_was_saved_over(tmp_path: Path) -> None:
    path = make(tmp_path, "megatron-torch-dist")
    newest(path / "common.pt")
    assert "common.pt is newer than .metadata" in reason(path)


# --- what is no trouble ---------------------------------------------------------------------------


@pytest.mark.parametrize("said", [{"format": "orbax"}, {"files": ["a"]}, ["a", "b"]])
def test_a_manifest_of_something_else_says_nothing_of_a_checkpoint(
    tmp_path: Path, said: object
) -> None:
    path = make(tmp_path, "hf-trainer")
    (path / "manifest.json").write_text(json.dumps(said))
    found = last_complete(tmp_path).found
    assert found.format == "hf-trainer"
    (tmp_path / "data").mkdir()
    (tmp_path / "data/manifest.json").write_text(json.dumps(said))
    assert [each.claimed for each in last_complete(tmp_path).passed_over] == [False]


def test_one_that_was_deleted_since_it_was_listed_is_not_unreadable(tmp_path: Path) -> None:
    row = judge(tmp_path / "step-10")
    assert isinstance(row, PassedOver)
    assert (row.why, row.unreadable, row.claimed) == ("it is not there any more", False, False)


def test_a_directory_whose_name_is_a_digit_and_no_number(tmp_path: Path) -> None:
    (tmp_path / "\N{SUPERSCRIPT TWO}").mkdir()
    path = make(tmp_path, "torch-dcp")
    found = last_complete(tmp_path).found
    assert found.path == path
