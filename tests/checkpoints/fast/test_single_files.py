"""Steps that are a single file of torch.save: proved, copied, restored and flushed as others."""

import os
import time
from pathlib import Path

import pytest

from hpctl.checkpoints.fast.node import NodeSaveStore
from hpctl.checkpoints.fast.spec import META, FastCheckpointSaveSpec, FastSavedFile, FastSavedStep
from hpctl.checkpoints.search import OWN_FORMAT, CompleteCheckpoint, verify_checkpoint
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions
from tests.checkpoints.checkpoint_files import safetensors, torch_save
from tests.checkpoints.fast import cluster
from tests.checkpoints.fast.cluster import Nodes, wait_for
from tests.waiting import until

pytestmark = pytest.mark.integration


@pytest.fixture
def tell_soon(monkeypatch):
    """A leader that says after a second what it does not copy."""
    soon = f"{cluster.LOOK_OFTEN}from hpctl.checkpoints.fast import lead\nlead.TELL_S = 1.0\n"
    monkeypatch.setattr(cluster, "HELPER", cluster.HELPER.replace(cluster.LOOK_OFTEN, soon))


def raw(step: int, tensors: int = 3) -> bytes:
    return torch_save({"model": step, "step": step}, tensors)


def put(path: Path, content: bytes) -> None:
    """As a program does that renames its file when it is written."""
    made = path.with_name(f"{path.name}.tmp")
    made.write_bytes(content)
    made.rename(path)


def copies(nodes: Nodes, name: str) -> list[Path]:
    return sorted(nodes.place.glob(f"n*/{META}/copies/n*/{name}"))


def test_a_file_outlives_the_node_that_saved_it(tmp_path):
    with Nodes(tmp_path, 3, flush_s=1) as nodes:
        nodes.resume()
        put(nodes.disk("n1") / "step-10.pt", raw(10))
        nodes.safe("step-10.pt")
        (copy,) = copies(nodes, "step-10.pt")
        assert copy.read_bytes() == raw(10)
        wait_for(nodes.shared / "step-10.pt")
        nodes.lose("n1")
        (nodes.shared / "step-10.pt").unlink()
        nodes.start("n1")
        found = nodes.resume().found
        assert found is not None, nodes.said
        assert (found.step, found.format) == (10, "torch-save")
        for host in nodes.spec.hosts:
            assert (nodes.disk(host) / "step-10.pt").read_bytes() == raw(10)
        assert any("copy of n1" in line for line in nodes.said), nodes.said


def test_the_newest_file_is_flushed_at_the_end_and_older_ones_go(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        for step in (1, 2, 3, 4):
            put(nodes.disk("n0") / f"step-{step}.pt", raw(step))
            nodes.safe(f"step-{step}.pt")
        until(lambda: not (nodes.disk("n0") / "step-1.pt").exists())
        until(lambda: copies(nodes, "step-1.pt") == [])
        nodes.end()
        assert (nodes.shared / "step-4.pt").read_bytes() == raw(4)
        assert isinstance(verify_checkpoint(nodes.shared / "step-4.pt"), CompleteCheckpoint)
        assert not (nodes.shared / "step-3.pt").exists()


def test_a_save_in_place_that_was_cut_short_leaves_the_copy_of_the_one_before(tmp_path):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        latest = nodes.disk("n0") / "latest.pt"
        latest.write_bytes(raw(10))
        nodes.safe("latest.pt")
        latest.write_bytes(raw(20)[:-40])
        put(nodes.disk("n1") / "step-15.pt", raw(15))  # once it is safe, the cut one was judged
        nodes.safe("step-15.pt")
        assert [copy.read_bytes() for copy in copies(nodes, "latest.pt")] == [raw(10)]
        latest.write_bytes(raw(20))
        nodes.safe("latest.pt")
        until(lambda: [copy.read_bytes() for copy in copies(nodes, "latest.pt")] == [raw(20)], 10)


def test_of_a_file_that_each_node_writes_all_must_be_whole_and_of_one_step(tmp_path, tell_soon):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        put(nodes.disk("n0") / "latest.pt", raw(10))
        put(nodes.disk("n1") / "latest.pt", raw(9))
        until(lambda: "the nodes' files of this name are of different steps" in nodes.log(), 20)
        put(nodes.disk("n1") / "latest.pt", raw(10, tensors=4))
        nodes.safe("latest.pt")
        nodes.lose("n1")
        nodes.start("n1")
        found = nodes.resume().found
        assert found is not None, nodes.said
        assert found.step == 10
        # Its own, or its neighbor's where the step was proved anew without it.
        restored = (nodes.disk("n1") / "latest.pt").read_bytes()
        assert restored in (raw(10), raw(10, tensors=4))


def test_what_is_not_copied_is_said_once_for_each_pattern_of_names(tmp_path, tell_soon):
    with Nodes(tmp_path, 2) as nodes:
        nodes.resume()
        for number in (1, 2):
            weights = torch_save({"weight": 1})
            (nodes.disk("n0") / f"model-{number}.pt").write_bytes(weights)
            (nodes.disk("n1") / f"weights-{number}.safetensors").write_bytes(safetensors(["w"]))
        (nodes.disk("n0") / "step-7.pt").write_bytes(raw(7)[:-40])
        for name in ("train.log", "notes.txt", "x.pt.tmp"):
            (nodes.disk("n0") / name).write_text("x")
        put(nodes.disk("n0") / "step-5.pt", raw(5))
        nodes.safe("step-5.pt")

        def said() -> list[str]:
            return [line for line in nodes.log().splitlines() if "is not copied to" in line]

        until(lambda: len(said()) >= 3, 20)
        time.sleep(1.5)
        lines = sorted(said())
        assert len(lines) == 3, lines
        assert "model-1.pt is not copied" in lines[0]
        assert OWN_FORMAT in lines[0]
        assert "(said once for model-N.pt)" in lines[0]
        assert "step-7.pt is not copied to other nodes: " in lines[1]
        assert "weights-1.safetensors is not copied to other nodes: " in lines[2]


def test_a_file_that_changed_while_it_was_read_is_no_copy(tmp_path):
    """What the partner asks last."""
    spec = FastCheckpointSaveSpec(
        "1",
        "x",
        FastCheckpointSaveOptions(str(tmp_path / "n0")),
        str(tmp_path),
        ("n0",),
        ("127.0.0.1",),
    )
    node = NodeSaveStore(spec, "n0")
    path = tmp_path / "n0/latest.pt"
    path.write_bytes(raw(1))
    status = path.stat()
    file = FastSavedFile("", status.st_size, status.st_mtime_ns, status.st_mtime_ns, "n0")
    row = FastSavedStep("latest.pt", 1, "torch-save", ("n0",), (file,), 1.0)
    request = {"do": "same", "step": row.name, "files": [{**_plain(file)}]}
    assert node.handle(request) == {}
    os.utime(path, ns=(1, status.st_mtime_ns + 1))
    with pytest.raises(OSError, match=r"latest\.pt has changed"):
        node.handle(request)


def _plain(file: FastSavedFile) -> dict[str, object]:
    return {name: getattr(file, name) for name in file.__struct_fields__}
