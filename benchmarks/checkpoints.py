"""A torch DCP checkpoint of 10 000 files: is it whole, and how long does it take to say?

The rivals do less. torch's own reader decodes the same `.metadata` into objects, and with one
os.stat a file the sizes are known: nothing is known of their ends. `pickletools.genops` walks
through the same pickle without running it, and keeps nothing. Without torch its rows are missing.
"""

import gc
import io
import os
import pickle
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from pickletools import genops
from typing import Any

from benchmarks.table import Outcome, Row, median
from hpctl.checkpoints.files import open_file
from hpctl.checkpoints.formats import torch_files

FILES = 10_000
ITEMS = 4
RUNS = 3
BAR_S = 5.0
BAR_S_PER_MB = 0.25


def run() -> Outcome:
    """Write one, then look at it with each in turn."""
    try:
        from torch.distributed.checkpoint import FileSystemReader
    except ImportError:
        FileSystemReader = None  # noqa: N806
    notes = []
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as temporary:
        directory = Path(temporary)
        size = _write(directory, with_torch=FileSystemReader is not None) / 1e6
        work: dict[str, Callable[[], object]] = {
            "ours": lambda: torch_files.verify_dcp_directory(directory),
            "metadata": lambda: _metadata(directory),
            "genops": lambda: _genops(directory),
        }
        if FileSystemReader is not None:
            reader = FileSystemReader(directory)
            work["torch"] = reader.read_metadata
            work["torch and stat"] = lambda: _torch_and_stat(reader, directory)
        took = _measure(work)
        notes.append(f"{FILES:,} files, {ITEMS * FILES:,} items, .metadata of {size:.1f} MB")
    whole = f"{FILES:,} files proved whole"
    each = ".metadata, for each MB"
    rows = [
        Row(whole, took["ours"], "s", "read_metadata + stat", took.get("torch and stat"), BAR_S),
        Row(
            each, took["metadata"] / size, "s", "torch read_metadata",
            took["torch"] / size if "torch" in took else None, BAR_S_PER_MB,
        ),
        Row(each, took["metadata"] / size, "s", "pickletools.genops", took["genops"] / size),
    ]  # fmt: skip
    notes.append(f"processor time, medians of {RUNS} in turn, page cache; torch's import not in it")
    return Outcome("checkpoints", rows, notes)


def _write(directory: Path, *, with_torch: bool) -> int:
    item = _archive()
    for rank in range(FILES):
        (directory / f"__{rank}_0.distcp").write_bytes(item * ITEMS)
    metadata = _of_torch(len(item)) if with_torch else _as_torch(len(item))
    (directory / ".metadata").write_bytes(metadata)
    return len(metadata)


def _archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"x": 1}))
        archive.writestr("archive/data/0", bytes(64))
    return out.getvalue()


def _of_torch(length: int) -> bytes:
    import torch
    from torch.distributed.checkpoint import metadata as meta
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    names = [f"__{rank}_0.distcp" for rank in range(FILES)]
    about: dict[str, Any] = {}
    stored: dict[Any, Any] = {}
    for at in range(ITEMS):
        fqn = f"model.layers.{at}.self_attention.linear_qkv.weight"
        shape = torch.Size([128, 4096])
        places = [torch.Size([128 * rank, 0]) for rank in range(FILES)]
        about[fqn] = meta.TensorStorageMetadata(
            meta.TensorProperties(dtype=torch.bfloat16),
            torch.Size([128 * FILES, 4096]),
            [meta.ChunkStorageMetadata(place, shape) for place in places],
        )
        for rank, place in enumerate(places):
            key = meta.MetadataIndex(fqn, place, rank)
            stored[key] = _StorageInfo(names[rank], at * length, length)
    return pickle.dumps(meta.Metadata(about, None, stored))


class Stored:
    """What stands for torch's objects where there is no torch."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


def _as_torch(length: int) -> bytes:
    stored = {}
    for rank in range(FILES):
        name = f"__{rank}_0.distcp"
        for at in range(ITEMS):
            key = Stored(fqn=f"model.layers.{at}.weight", offset=(128 * rank, 0), index=rank)
            stored[key] = Stored(relative_path=name, offset=at * length, length=length)
    return pickle.dumps(Stored(state_dict_metadata={}, storage_data=stored))


def _measure(work: dict[str, Callable[[], object]]) -> dict[str, float]:
    taken: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(RUNS):
        for name, one in work.items():
            gc.collect()
            begun = time.process_time()
            one()
            taken[name].append(time.process_time() - begun)
    return {name: median(values) for name, values in taken.items()}


def _metadata(directory: Path) -> None:
    with open_file(directory, torch_files.METADATA) as file:
        assert len(torch_files.list_dcp_data_files(file)) == FILES


def _genops(directory: Path) -> None:
    for _ in genops((directory / torch_files.METADATA).read_bytes()):
        pass


def _torch_and_stat(reader: Any, directory: Path) -> None:
    sizes: dict[str, int] = {}
    for info in reader.read_metadata().storage_data.values():
        if info.relative_path not in sizes:
            sizes[info.relative_path] = os.stat(directory / info.relative_path).st_size
        assert info.offset + info.length <= sizes[info.relative_path]
