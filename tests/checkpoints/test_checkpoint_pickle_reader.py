"""The reader of `.metadata`: the same as the standard library says, at any size, in any pieces."""

import pickle
import sys
from collections import defaultdict
from dataclasses import dataclass

import pytest

from hpctl.checkpoints.files import (
    IncompleteCheckpointError,
    UnverifiableCheckpointError,
    open_file,
)
from hpctl.checkpoints.formats import pickle_reader, torch_files
from tests.process import run_text


class Size(tuple[int, ...]):
    """As torch.Size is pickled: a call with a tuple."""

    __slots__ = ()

    def __reduce__(self) -> object:
        return Size, (tuple(self),)


@dataclass(frozen=True)
class Index:
    fqn: str
    offset: Size | None = None
    index: int | None = None


@dataclass
class Info:
    relative_path: str
    offset: int
    length: int
    transform_descriptors: list[str] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if value is not None}


@dataclass
class Metadata:
    state_dict_metadata: object
    planner_data: object
    storage_data: object


def metadata(tensors: int, shards: int, *, transformed: bool = False) -> Metadata:
    about: dict[str, object] = {}
    stored: dict[Index, Info] = {}
    for tensor in range(tensors):
        fqn = f"layers.{tensor}.weight \N{GREEK SMALL LETTER MU}"
        sizes = [(Size((shard * 128, 0)), Size((128, 4096))) for shard in range(shards)]
        about[fqn] = {"chunks": sizes, "size": Size((7,)), "rate": 0.1, "big": 10**30, "flag": True}
        for shard in range(shards):
            key = Index(fqn, Size((shard * 128, 0, 3)[: 1 + tensor % 3]), shard or None)
            how = ["zstd"] if transformed and shard == 1 else None
            stored[key] = Info(f"__{shard}_0.distcp", tensor << 33, 1 << 20, how)
    return Metadata(about, {"storage_data": 5, "x": b"bytes", "y": {1, 2}, "z": [None]}, stored)


def read(tmp_path, raw: bytes, *, keep: bool = False) -> dict[str, torch_files.DcpDataFileItems]:
    path = tmp_path / ".metadata"
    path.write_bytes(raw)
    with open_file(path, "") as file:
        return torch_files.list_dcp_data_files(file, keep=keep)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("chunk", [700, 1 << 20])
def test_it_says_what_the_standard_library_says(tmp_path, monkeypatch, protocol, chunk):
    monkeypatch.setattr(pickle_reader, "CHUNK", chunk)
    saved = metadata(40, 30, transformed=True)
    held = read(tmp_path, pickle.dumps(saved, protocol), keep=True)
    expected = defaultdict(list)
    for info in saved.storage_data.values():
        expected[info.relative_path].append((info.offset, info.length))
    assert {name: list(each.items()) for name, each in held.items()} == expected
    assert {name: each.end for name, each in held.items()} == {
        name: max(offset + length for offset, length in places) for name, places in expected.items()
    }
    assert [name for name, each in held.items() if each.transformed] == ["__1_0.distcp"]
    assert not list(read(tmp_path, pickle.dumps(saved, protocol))["__0_0.distcp"].items())


@pytest.mark.slow
def test_every_cut_is_seen(tmp_path):
    raw = pickle.dumps(metadata(2, 3), 4)
    for size in range(len(raw)):
        with pytest.raises(IncompleteCheckpointError, match="cut off or damaged"):
            read(tmp_path, raw[:size])


def test_what_it_cannot_follow_is_no_verdict(tmp_path):
    info = Info("__0_0.distcp", 0, 5)
    with pytest.raises(UnverifiableCheckpointError, match="twice"):
        read(tmp_path, pickle.dumps(Metadata({}, None, {Index("a"): info, Index("b"): info}), 4))
    stored = {Index("a"): info}
    with pytest.raises(UnverifiableCheckpointError, match=r"another place|elsewhere"):
        read(tmp_path, pickle.dumps(Metadata(stored, None, stored), 4))
    for other in ({}, [], {"storage_data": 1}, Metadata({}, None, {})):
        with pytest.raises(IncompleteCheckpointError, match="lists no data files"):
            read(tmp_path, pickle.dumps(other, 4))


PEAK = """
import sys, tracemalloc
from pathlib import Path
from hpctl.checkpoints.formats import torch_files
from hpctl.checkpoints.files import open_file
tracemalloc.start()
with open_file(Path(sys.argv[1]), "") as file:
    held = torch_files.list_dcp_data_files(file)
print(len(held), tracemalloc.get_traced_memory()[1])
"""


@pytest.mark.nightly
def test_memory_does_not_go_with_the_number_of_items(tmp_path):
    peaks = []
    for items in (1_000, 6_000):
        path = tmp_path / str(items)
        path.write_bytes(pickle.dumps(metadata(items // 100, 100), 4))
        # In a process of its own: what this one's other threads hold would be counted, too.
        ran = run_text([sys.executable, "-c", PEAK, path], check=True)
        count, peak = map(int, ran.stdout.split())
        assert count == 100
        peaks.append(peak - path.stat().st_size)
    assert peaks[1] < peaks[0] + 5_000 * 25, "the file has 134 bytes an item"
