"""Orbax's steps: what a kill or a removal leaves, and files that mean harm."""

import importlib.util
import json
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest

from hpctl.checkpoints.formats import ocdbt, orbax
from hpctl.checkpoints.search import (
    CompleteCheckpoint,
    SkippedCheckpoint,
    find_newest_complete_checkpoint_in_tiers,
    list_checkpoints,
    verify_checkpoint,
)
from tests.checkpoints import ocdbt_files
from tests.checkpoints.checkpoint_files import write
from tests.checkpoints.ocdbt_files import (
    DATA,
    interior,
    leaf,
    manifest,
    numbers,
    orbax_files,
    orbax_zarr_files,
    sealed,
    step,
    tree,
    zarr,
)

# Steps that orbax-checkpoint 0.12.8 saved: trees in OCDBT, in zarr 2 and 3, and a manager's step.
REAL = Path(__file__).with_name("orbax_0_12_saved.zip")
# What orbax-checkpoint 0.12.8 saved on four devices: a manager's step with a tree, JSON, an array,
# random keys of JAX and numpy and metrics, and a step of its v1 interface.
ITEMS = Path(__file__).with_name("orbax_0_12_items.zip")
ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


def has_zstd() -> bool:
    try:
        return importlib.util.find_spec(ZSTD) is not None
    except ModuleNotFoundError:
        return False


def passed(path: Path, *, deep: bool = False) -> SkippedCheckpoint:
    began = time.monotonic()
    row = verify_checkpoint(path, deep=deep)
    assert isinstance(row, SkippedCheckpoint), row
    assert time.monotonic() - began < 10
    return row


def real(root: Path, archive: Path = REAL) -> Path:
    if not has_zstd():
        pytest.skip("NOT TESTED: backports.zstd is not installed")
    with zipfile.ZipFile(archive) as saved:
        saved.extractall(root)
    return root


def value_ends(root: Path) -> dict[Path, int]:
    """Each data file of the databases, and where its last value ends."""
    ends: dict[Path, int] = {}
    for found in root.rglob(f"{ocdbt.MANIFEST}"):
        if found.parent.name.startswith("ocdbt.process_"):
            continue
        for value in ocdbt.read_value_locations(found.parent).values():
            path = found.parent / value.path
            ends[path] = max(ends.get(path, 0), value.offset + value.size)
    return ends


def test_what_orbax_saved_is_whole(tmp_path):
    rows = list_checkpoints(real(tmp_path), deep=True)
    assert [(row.step, row.format) for row in rows] == [(n, "orbax") for n in (4, 3, 2, 1)]


def test_each_item_that_orbax_saved_is_whole(tmp_path):
    rows = list_checkpoints(real(tmp_path, ITEMS), deep=True)
    assert [(row.step, row.format) for row in rows] == [(6, "orbax"), (5, "orbax")]


NEVER_READ = ("commit_success.txt", "orbax.checkpoint")
"""Orbax 0.12.8 loads each sample whatever these files hold; the first only has to be there."""


@pytest.mark.parametrize("archive", [REAL, ITEMS], ids=lambda path: path.stem)
def test_each_cut_and_each_loss_is_seen_without_reading_the_data(tmp_path, archive):
    """Orbax 0.12.8 fails on each of these; tests/checkpoints/proof/test_damaged_orbax.py asks
    it."""
    ends = value_ends(real(tmp_path, archive))
    for path in sorted(tmp_path.rglob("*")):
        of_process = "ocdbt.process_0" in path.parts
        if path.is_dir() or path.name in NEVER_READ or (of_process and path not in ends):
            continue  # a process's own manifest and nodes, which the step's were made from
        top = tmp_path / path.relative_to(tmp_path).parts[0]
        raw = path.read_bytes()
        lengths = {0, 1, len(raw) // 4, len(raw) // 2, len(raw) * 9 // 10, len(raw) - 1}
        # Behind the values in a process's file are nodes of its own.
        for length in sorted(n for n in lengths if n < ends.get(path, len(raw))):
            path.write_bytes(raw[:length])
            assert isinstance(verify_checkpoint(top), SkippedCheckpoint), (path, length)
        path.unlink()
        if path.name not in ("process_0", "_sharding"):  # which may be absent
            assert not passed(top).unreadable or path.name == "_CHECKPOINT_METADATA", path
        path.write_bytes(raw)
    assert all(isinstance(row, CompleteCheckpoint) for row in list_checkpoints(tmp_path))


def test_a_byte_that_is_changed_is_seen_by_a_deep_look(tmp_path):
    ends = value_ends(real(tmp_path))
    for path in sorted(tmp_path.rglob("*")):
        merged = "ocdbt.process_0" in path.parts
        if path.is_dir() or path.name in NEVER_READ or (merged and path not in ends):
            continue
        raw = path.read_bytes()
        path.write_bytes(bytes(len(raw)))
        top = tmp_path / path.relative_to(tmp_path).parts[0]
        assert isinstance(verify_checkpoint(top, deep=True), SkippedCheckpoint), path
        path.write_bytes(raw)


def committed(root: Path) -> Path:
    """The sample's step 4 with the times that a save gives it: the mark is the newest."""
    step = real(root) / "4"
    for path in (step, *step.rglob("*")):
        os.utime(path, (1000, 1000))
    os.utime(step / "commit_success.txt", (1001, 1001))
    return step


def test_where_the_arrays_lay_may_be_absent_but_not_removed(tmp_path):
    step = committed(tmp_path)
    (step / "state/_sharding").unlink()
    os.utime(step / "state", (1000, 1000))
    assert isinstance(verify_checkpoint(step), CompleteCheckpoint), "the program saves without it"
    os.utime(step / "state", (1002, 1002))
    assert "state: _sharding is missing: it was deleted after the save finished" in passed(step).why
    for path in step.rglob("*"):
        if path.is_dir():
            os.utime(path, (1003, 1003))
    assert isinstance(verify_checkpoint(step), CompleteCheckpoint), (
        "a copy without times shows nothing"
    )


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"dw==":"{\\"shard', "_sharding is not valid JSON"),
        (b"[]", "_sharding is not a JSON object"),
        (b'{"dw==": 7}', "an entry that does not name the array's devices"),
        (b'{"dw==": "{\\"shar"}', "an entry of _sharding is not valid JSON"),
        (b'{"dw==": ""}', None),
        (b"{}", None),  # Orbax leaves out what it cannot describe, and loads it with a target
    ],
)
def test_a_damaged_sharding_file_is_refused_as_orbax_refuses_it(tmp_path, raw, why):
    step = real(tmp_path) / "4"
    (step / "state/_sharding").write_bytes(raw)
    if why is None:
        assert isinstance(verify_checkpoint(step), CompleteCheckpoint)
    else:
        assert why in passed(step).why


def test_a_random_key_needs_its_array_its_devices_and_its_metadata(tmp_path):
    step = real(tmp_path, ITEMS) / "5"
    for gone, why in (
        ("key/jax_random_key", "jax_random_key/ is missing"),
        ("key/jax_random_key_metadata", "jax_random_key_metadata/ is missing"),
        ("key/jax_random_key/_sharding", "jax_random_key/_sharding is missing"),
        ("np_key/np_random_key", "np_random_key/ is missing"),
    ):
        (step / gone).rename(tmp_path / "aside")
        assert why in passed(step).why
        (tmp_path / "aside").rename(step / gone)
    assert isinstance(verify_checkpoint(step), CompleteCheckpoint)


def test_a_string_that_is_lost_from_the_file_of_strings_is_seen(tmp_path):
    step = real(tmp_path) / "step_1"
    (step / "_strings.json").write_text('{"other": "run"}')
    assert "_strings.json does not have the text of 'name'" in passed(step).why


def test_only_so_many_blocks_are_followed_without_deep(tmp_path, monkeypatch):
    path = real(tmp_path) / "step_2/params.w/0.0"
    path.write_bytes(path.read_bytes()[:-1])
    assert "params.w/0.0" in passed(tmp_path / "step_2").why
    monkeypatch.setattr(orbax, "MAX_BLOCKS", 0)
    assert isinstance(verify_checkpoint(tmp_path / "step_2"), CompleteCheckpoint)
    assert isinstance(verify_checkpoint(tmp_path / "step_2", deep=True), SkippedCheckpoint)


def test_without_zstd_nothing_is_proved(tmp_path, monkeypatch):
    write(tmp_path / "40", orbax_files())
    raw = (tmp_path / "40/state/manifest.ocdbt").read_bytes()
    packed = sealed(0x0CDB3A2A, raw[14:-4], method=1)
    (tmp_path / "40/state/manifest.ocdbt").write_bytes(packed)
    monkeypatch.setitem(sys.modules, ZSTD.partition(".")[0], None)
    assert "backports.zstd" in (row := passed(tmp_path / "40")).why
    assert row.unreadable


def test_a_save_that_was_not_committed_is_no_checkpoint(tmp_path):
    write(tmp_path / "40.orbax-checkpoint-tmp", orbax_files())
    write(tmp_path / "41", {**orbax_files(), "_CHECKPOINT_METADATA": step("x.PyTree", None)})
    (tmp_path / "41/commit_success.txt").unlink()
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "none"
    (tmp_path / "41/commit_success.txt").write_text("yes")
    assert "_METADATA is missing" in passed(tmp_path / "41").why


def test_an_item_in_another_format_counts_while_nothing_was_removed(tmp_path):
    items = {"state": "x.StandardCheckpointHandler", "data": "grain.CheckpointHandler"}
    path = write(tmp_path / "40", {**orbax_files(), "data/process_0.bin": b"x"})
    (path / "_CHECKPOINT_METADATA").write_bytes(step(items))
    (path / "commit_success.txt").touch()
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint)
    later = (path / "commit_success.txt").stat().st_mtime_ns + 10**9
    os.utime(path / "data", ns=(later, later))
    assert "data: a file was changed after the save finished" in passed(path).why
    os.utime(path / "data", ns=(later - 10**9, later - 10**9))
    os.utime(path / "data/process_0.bin", ns=(later, later))
    assert "data: a file was changed after the save finished" in passed(path).why
    (path / "_CHECKPOINT_METADATA").write_bytes(step({"a": "x.Other", **items}))
    assert "a/ is missing" in passed(path).why


def test_a_chunk_that_may_be_zeros_is_not_proved(tmp_path):
    files = {**orbax_zarr_files(), "_METADATA": tree(ocdbt=False, complete=False)}
    del files["params.w0/1"]
    row = passed(write(tmp_path / "40", files))
    assert row.unreadable
    assert "params.w0/1 is missing: its data are all zeros, or the file was lost" in row.why


def test_what_may_be_being_removed_or_old_is_not_called_nothing(tmp_path):
    files = orbax_zarr_files()
    del files["_CHECKPOINT_METADATA"]
    assert passed(write(tmp_path / "40", files)).unreadable
    path = write(tmp_path / "41", orbax_files())
    (path / "commit_success.txt").unlink()
    assert "or the save was killed just before its end" in (row := passed(path)).why
    assert row.unreadable


HELD = {key.encode(): raw for name in ocdbt_files.ARRAYS for key, raw in zarr(name).items()}
LEAF = leaf({key: raw[:200] for key, raw in HELD.items()}, 0)
LONG = numbers(0, 2**62)


def behind(node: bytes, height: int = 0) -> dict[str, bytes]:
    return {"state/manifest.ocdbt": manifest(0, len(node), height), f"state/{DATA}": node}


def cycle() -> dict[str, bytes]:
    size = len(interior([(b"a", 0, 200, 0)], height=9))
    return behind(interior([(b"a", 0, size, 0)], height=9), 9)


HOSTILE = {
    "a node in ocdbt.process_0/d/aa twice": cycle(),
    "does not match the index above it": behind(LEAF, 3),
    "passwd', which is outside": {
        "state/manifest.ocdbt": manifest(0, 9, 0, "../../../../etc/passwd", 0)
    },
    "'/etc/passwd', which is outside": {
        "state/manifest.ocdbt": manifest(0, 9, 0, "/etc/passwd", 0)
    },
    "too many nodes": {"state/manifest.ocdbt": manifest(0, 1 << 40, 0)},
    "has 1 of": {"state/manifest.ocdbt": manifest(1 << 62, 90, 0), f"state/{DATA}": b"x"},
    "it lists more data than it has": {
        "state/manifest.ocdbt": sealed(0x0CDB3A2A, bytes(19) + b"\4" + LONG)
    },
    "its recorded length or checksum": {
        "state/manifest.ocdbt": orbax_files()["state/manifest.ocdbt"][:-1] + b"\0"
    },
    "checksum: it is cut off or damaged": {"state/manifest.ocdbt": b"\x0c" * 40},
    "version or compression": {"state/manifest.ocdbt": sealed(0x0CDB3A2A, b"", version=7)},
    "is not valid JSON": {"state/_METADATA": b'{"a":' * 200_000},
    "names no arrays": {"state/_METADATA": b"{}"},
    "data: metadata is not valid JSON": {"data/metadata": b"[" * 200_000},
    "not a JSON": {"_CHECKPOINT_METADATA": b"[]"},
    "the name '../../40' in it leads outside": {
        "_CHECKPOINT_METADATA": step({"../../40": "x.PyTreeHandler"})
    },
}


@pytest.mark.parametrize("why", HOSTILE)
def test_hostile_files_are_refused_at_once(tmp_path, why):
    row = passed(write(tmp_path / "40", {**orbax_files(), **HOSTILE[why]}))
    assert why in row.why


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"shape": [10**15], "chunks": [1]}, "more than"),
        ({"shape": [10**15] * 40, "chunks": [1] * 40}, "more than"),
        ({"shape": [5], "chunks": [1, 1]}, "no valid description"),
        ({"shape": "x", "chunks": [-1]}, "no valid description"),
        ({"shape": [-5], "chunks": [1]}, "no valid description"),
        ({"shape": [150], "chunks": [100], "dtype": 7}, "no valid description"),
        ({"compressor": []}, "no valid description"),
        ({"compressor": {"id": []}, "dimension_separator": "/../../"}, "lies outside"),
    ],
)
def test_descriptions_that_mean_harm(tmp_path, about, why):
    path = write(tmp_path / "40", orbax_zarr_files())
    file = path / "params.w0/.zarray"
    file.write_text(json.dumps({**json.loads(file.read_bytes()), **about}))
    row = verify_checkpoint(path)
    assert why == "lies outside" or why in row.why


def test_links_fifos_and_devices_hold_no_one_up(tmp_path):
    for number, name in enumerate(sorted(orbax_files().keys() - {"commit_success.txt"})):
        path = write(tmp_path / f"{number}/40", orbax_files())
        (path / name).unlink()
        os.mkfifo(path / name)
        passed(path)
    for number, target in enumerate(("/etc/passwd", "/dev/zero", "/", "40")):
        path = write(tmp_path / f"link-{number}/40", orbax_zarr_files())
        (path / "params.w0/1").unlink()
        (path / "params.w0/1").symlink_to(target)
        assert "params.w0/1 is not a regular file" in passed(path).why


@pytest.mark.parametrize(
    "name", ["state/_METADATA", "state/manifest.ocdbt", "_CHECKPOINT_METADATA"]
)
def test_a_huge_file_is_not_read(tmp_path, name):
    path = write(tmp_path / "40", orbax_files())
    with (path / name).open("r+b") as file:
        file.truncate(1 << 40)
    assert "at most" in passed(path).why


def test_a_node_that_decompresses_to_the_earth(tmp_path):
    real(tmp_path / "unused")
    zstd = pytest.importorskip(ZSTD)
    bomb = zstd.compress(bytes(200 << 20))
    path = write(tmp_path / "40", orbax_files())
    (path / "state/manifest.ocdbt").write_bytes(sealed(0x0CDB3A2A, bomb, method=1))
    assert "more than 128 MiB" in passed(path).why


def test_the_checksum_is_castagnolis():
    assert ocdbt.compute_crc32c(b"123456789") == 0xE3069283
