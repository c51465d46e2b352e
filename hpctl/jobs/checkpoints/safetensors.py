"""safetensors files and their index: the header's offsets must fill the file exactly.

Eight bytes of length, a JSON header, the tensors. The header comes first: a file that was cut is
shorter than its header says. Nothing in the format tells zeros from data. Source: the format's
description at huggingface/safetensors.
"""

from __future__ import annotations

import json
from pathlib import PurePosixPath

from hpctl.jobs.checkpoints.files import Place, content, for_each, opened
from hpctl.jobs.checkpoints.reasons import NotWhole

MAX_HEADER = 64 << 20
_MAX_INDEX = 64 << 20
_AHEAD = 64 << 10


def prove(root: Place, name: str) -> frozenset[str]:
    """The names of a whole file's tensors. Raises NotWhole, OSError. Two reads."""
    with opened(root, name) as file:
        if file.size < 8:
            raise NotWhole(f"{file.name} has {file.size} bytes: still being written, or cut")
        file.ahead(0, _AHEAD)
        length = int.from_bytes(file.read(0, 8), "little")
        if length > MAX_HEADER or 8 + length > file.size:
            raise NotWhole(f"{file.name} is cut or damaged: its header has {length} bytes")
        header = _object(file.read(8, length), file.name)
        end = 0
        tensors = {key: value for key, value in header.items() if key != "__metadata__"}
        for value in tensors.values():
            offsets = value.get("data_offsets") if isinstance(value, dict) else None
            if not isinstance(offsets, list) or len(offsets) != 2:
                raise NotWhole(f"{file.name}: its header names a tensor without offsets")
            if not all(type(o) is int and o >= 0 for o in offsets):
                raise NotWhole(f"{file.name}: its header has offsets that are no numbers")
            end = max(end, offsets[1])
        if file.size != 8 + length + end:
            raise NotWhole(f"{file.name} has {file.size} of {8 + length + end} bytes")
    return frozenset(tensors)


def shards(root: Place, index: str) -> dict[str, set[str]]:
    """Shard to the tensors in it, from an index file. Raises NotWhole, OSError."""
    document = _object(content(root, index, _MAX_INDEX), index)
    where = document.get("weight_map")
    if not isinstance(where, dict) or not where:
        raise NotWhole(f"{index} has no weight_map")
    found: dict[str, set[str]] = {}
    for tensor, shard in where.items():
        if not isinstance(shard, str) or PurePosixPath(shard).name != shard or "\0" in shard:
            raise NotWhole(f"{index}: {str(shard)[:80]!r} does not lie inside the checkpoint")
        found.setdefault(shard, set()).add(tensor)
    return found


def prove_index(root: Place, index: str) -> None:
    """Every shard that the index names is whole and holds what it should. Raises as prove."""
    named = shards(root, index)

    def one(shard: str) -> None:
        missing = named[shard] - prove(root, shard)
        if missing:
            raise NotWhole(f"{shard} lacks {min(missing)[:80]}, which {index} says it has")

    for_each(root, sorted(named), one)


def _object(raw: bytes, name: str) -> dict[str, object]:
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        raise NotWhole(f"{name} is not JSON: still being written, or damaged") from None
    if not isinstance(document, dict):
        raise NotWhole(f"{name} is not a JSON object")
    return document
