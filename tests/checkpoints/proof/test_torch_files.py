"""What the real torch writes, undisturbed: recognised, whole, and its checksums match."""

import pytest

from hpctl.checkpoints.search import last_complete
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
    assert last_complete(tmp_path).verdict == "found"
    search = last_complete(tmp_path, deep=True)
    assert search.found is None
    assert "no checksums to compare" in search.passed_over[0].why


def test_the_stream_format_cannot_be_proved(tmp_path) -> None:
    torch.save(state(1), tmp_path / "step=1.ckpt", _use_new_zipfile_serialization=False)
    assert "older stream" in last_complete(tmp_path).passed_over[0].why
