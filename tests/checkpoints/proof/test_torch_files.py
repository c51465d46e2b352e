"""What the real torch writes, undisturbed: recognised, whole, and its checksums match."""

import pytest

from hpctl.checkpoints.search import find_newest_complete_checkpoint_in_tiers
from tests.checkpoints.proof.torch_here import need

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.integration,
]  # torch warns that there is no process group
TENSORS, LENGTH = 6, 60_000
torch = None
dcp = None


@pytest.fixture(autouse=True)
def libraries() -> None:
    global torch, dcp
    torch, dcp = need("torch"), need("torch.distributed.checkpoint")


def state(step: int) -> dict[str, object]:
    tensors = {f"w{n}": torch.full((LENGTH,), float(step * 10 + n)) for n in range(TENSORS)}
    return {**tensors, "global_step": step, "more": {"rate": 0.1}}


def save_file(root, step):
    torch.save(state(step), root / f"step={step}.ckpt")


def test_without_checksums_deep_says_so(tmp_path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        save_file(tmp_path, 4)
    finally:
        torch.serialization.set_crc32_options(True)
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "found"
    search = find_newest_complete_checkpoint_in_tiers(tmp_path, deep=True)
    assert search.found is None
    assert "has no checksums" in search.passed_over[0].why


def test_the_stream_format_is_proved_by_its_size(tmp_path) -> None:
    path = tmp_path / "legacy.pt"
    saved = {**state(1), "global_step": torch.tensor(12), "half": torch.ones(3).bfloat16()}
    torch.save(saved, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.step, found.format) == (12, "torch-save")
    cuts = [0, 1, 40, len(whole) // 3, len(whole) // 2, len(whole) - 1]
    for damaged in [*(whole[:at] for at in cuts), whole + b"\0", bytes(len(whole))]:
        path.write_bytes(damaged)
        assert find_newest_complete_checkpoint_in_tiers(tmp_path).found is None, len(damaged)


@pytest.mark.parametrize(
    ("saved", "step"),
    [
        ({"iter_num": 250, "best_val_loss": 1.5}, 250),
        ({"epoch": 3, "arch": "resnet50"}, 3),
        ({"epoch": 3, "step": 700}, 700),
        ({"step": "tensor"}, 7),
        ({"trainer": {"global_step": 11}}, 11),
        ({"train_state": {"step": "tensor"}, "epoch": 2}, 7),
        ({"step": -1, "epoch": 4}, 4),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_the_step_is_found_where_programs_write_it(tmp_path, saved, step, zipped) -> None:
    def given(value):
        if isinstance(value, dict):
            return {key: given(each) for key, each in value.items()}
        return torch.tensor(7) if value == "tensor" else value

    model = torch.nn.BatchNorm1d(4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), **given(saved)}
    torch.save(state, tmp_path / "ckpt.pt", _use_new_zipfile_serialization=zipped)
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).found.step == step


@pytest.mark.parametrize("name", ["ckpt.pt", "checkpoint.pth.tar"])
def test_the_only_copy_that_was_cut_is_not_called_nothing(tmp_path, name) -> None:
    torch.save({"model": torch.ones(1000), "iter_num": 5}, tmp_path / name)
    whole = (tmp_path / name).read_bytes()
    for left in (0, 100, len(whole) - 1):
        (tmp_path / name).write_bytes(whole[:left])
        assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "incomplete"


@pytest.mark.parametrize(
    ("more", "step"),
    [({"step": 30}, 30), ({"trainer.global_step": 31}, 31), ({"step": "tensor"}, 32), ({}, None)],
)
def test_dcp_without_a_number_in_its_name_records_its_step(tmp_path, more, step) -> None:
    more = {key: torch.tensor(32) if each == "tensor" else each for key, each in more.items()}
    dcp.save({"model": {"w": torch.ones(5)}, **more}, checkpoint_id=tmp_path / "checkpoint")
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.step, found.format) == (step, "torch-dcp")
