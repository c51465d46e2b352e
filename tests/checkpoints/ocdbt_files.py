"""tensorstore's OCDBT and Orbax's steps, written by their description: nothing is compressed."""

import itertools
import json
from collections.abc import Mapping

from hpctl.checkpoints.formats.ocdbt import compute_crc32c

DATA = "ocdbt.process_0/d/aa"
Row = tuple[bytes, int, int, int]
"""A key, and the offset, length and shared length of what it stands for."""


def number(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def numbers(*values: int) -> bytes:
    return b"".join(map(number, values))


def sealed(magic: int, body: bytes, version: int = 0, method: int = 0) -> bytes:
    length = 4 + 8 + 2 + len(body) + 4
    raw = magic.to_bytes(4, "big") + length.to_bytes(8, "little") + bytes([version, method]) + body
    return raw + compute_crc32c(raw).to_bytes(4, "little")


def table(path: str, base: int = 0) -> bytes:
    return numbers(1, len(path), base) + path.encode()


def in_common(one: bytes, other: bytes) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def names(keys: list[bytes]) -> tuple[bytes, bytes]:
    """The numbers and the texts of keys, each without what it shares with the one before."""
    shared = [0]
    shared += [in_common(*pair) for pair in itertools.pairwise(keys)]
    rest = [key[n:] for key, n in zip(keys, shared, strict=True)]
    return numbers(*shared[1:]) + numbers(*map(len, rest)), b"".join(rest)


def node(body: bytes) -> bytes:
    return sealed(0x0CDB20DE, body)


def leaf(held: Mapping[bytes, bytes], at: int, path: str = "d/aa", base: int = 0) -> bytes:
    """Values of up to 200 bytes lie in the node, the others in the data file from `at` on."""
    keys = sorted(held)
    large = [len(held[key]) > 200 for key in keys]
    counts, texts = names(keys)
    offsets = []
    for key, apart in zip(keys, large, strict=True):
        if apart:
            offsets.append(at)
            at += len(held[key])
    return node(
        b"\0" + table(path, base) + number(len(keys)) + counts + texts
        + numbers(*(len(held[key]) for key in keys)) + numbers(*map(int, large))
        + numbers(*(0 for _ in offsets)) + numbers(*offsets)
        + b"".join(held[key] for key, apart in zip(keys, large, strict=True) if not apart)
    )  # fmt: skip


def interior(rows: list[Row], path: str = "d/aa", height: int = 1) -> bytes:
    counts, texts = names([row[0] for row in rows])
    columns = [numbers(*(row[n] for row in rows)) for n in (3, 1, 2)]
    shared, offsets, lengths = columns
    return node(
        bytes([height]) + table(path) + number(len(rows)) + counts + shared + texts
        + numbers(*(0 for _ in rows)) + offsets + lengths + numbers(*(0 for _ in rows)) * 3
    )  # fmt: skip


def manifest(offset: int, length: int, height: int, path: str = DATA, base: int = 16) -> bytes:
    config = bytes(16) + numbers(0, 100, 1000) + b"\4" + number(0)
    version = numbers(1, 1) + bytes([height]) + numbers(0, offset, length, 0, 0, 0) + bytes(8)
    return sealed(0x0CDB3A2A, config + table(path, base) + version + number(0))


def database(held: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """Values first, then two leaves, then the root over them, in one data file."""
    keys = sorted(held)
    data, nodes, rows = b"", [], []
    for part in (keys[: len(keys) // 2], keys[len(keys) // 2 :]):
        shared = (
            len(part[0])
            if len(part) == 1
            else next(n for n, (a, b) in enumerate(zip(part[0], part[-1], strict=False)) if a != b)
        )
        inner = {key[shared:]: held[key] for key in part}
        nodes.append((part[0], shared, leaf(inner, len(data))))
        data += b"".join(inner[key] for key in sorted(inner) if len(inner[key]) > 200)
    for key, shared, raw in nodes:
        rows.append((key, len(data), len(raw), shared))
        data += raw
    root = interior(rows)
    return {"manifest.ocdbt": manifest(len(data), len(root), 1), DATA: data + root}


ARRAYS = ("params.w0", "params.w1")
CHUNK = b"\7" * 400


def zarr(name: str) -> dict[str, bytes]:
    """An array of two chunks of a hundred float32 each, not compressed."""
    about = {
        "chunks": [100], "compressor": None, "dimension_separator": ".", "dtype": "<f4",
        "fill_value": None, "filters": None, "order": "C", "shape": [150], "zarr_format": 2,
    }  # fmt: skip
    return {f"{name}/.zarray": json.dumps(about).encode(), f"{name}/0": CHUNK, f"{name}/1": CHUNK}


def tree(ocdbt: bool, complete: bool = True) -> bytes:
    entries = {
        name: {
            "key_metadata": [{"key": key, "key_type": 2} for key in name.split(".")],
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False},
        }
        for name in ARRAYS
    }
    empty = {"value_type": "None", "skip_deserialize": True}
    entries["n"] = {"key_metadata": [{"key": "n", "key_type": 2}], "value_metadata": empty}
    return json.dumps(
        {"tree_metadata": entries, "use_ocdbt": ocdbt, "use_zarr3": False,
         "store_array_data_equal_to_fill_value": complete}
    ).encode()  # fmt: skip


def step(handlers, committed: int | None = 1) -> bytes:
    return json.dumps({"item_handlers": handlers, "commit_timestamp_nsecs": committed}).encode()


def orbax_files() -> dict[str, bytes]:
    """A step of CheckpointManager: a tree in a database, and JSON."""
    held = {key.encode(): raw for name in ARRAYS for key, raw in zarr(name).items()}
    inner = {**database(held), "_METADATA": tree(ocdbt=True)}
    handlers = {"state": "x.StandardCheckpointHandler", "data": "x.JsonCheckpointHandler"}
    return {
        **{f"state/{name}": raw for name, raw in inner.items()},
        "data/metadata": b'{"it": 3}',
        "_CHECKPOINT_METADATA": step(handlers),
        "commit_success.txt": b"",
    }


def orbax_zarr_files() -> dict[str, bytes]:
    """A step of StandardCheckpointer: zarr's files, a commit file."""
    files = {key: raw for name in ARRAYS for key, raw in zarr(name).items()}
    return {
        **files,
        "_METADATA": tree(ocdbt=False),
        "_CHECKPOINT_METADATA": step("x.PyTreeCheckpointHandler"),
        "commit_success.txt": b"",
    }


# The inside of two nodes, for those who change a byte of it.
LEAF = leaf({b"a/.zarray": b"{}", b"a/0": b"x" * 20}, 0)[14:-4]
INTERIOR = interior([(b"a", 0, 200, 1), (b"b", 200, 90, 1)])[14:-4]
