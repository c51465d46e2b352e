"""The manifest vouches for exactly what was written, and a damaged one for nothing."""

import json
import shutil
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctl.checkpoints import hpctl_checkpoint
from hpctl.checkpoints.files import CheckpointDefect
from hpctl.checkpoints.formats import manifest
from hpctl.checkpoints.formats.manifest import Manifest, ManifestFile
from hpctl.toolkit.compat import UTC

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
GOOD = Manifest(
    hpctl_checkpoint.FORMAT, hpctl_checkpoint.VERSION, 120, 2, WHEN,
    (ManifestFile("rank-0.npz", 10, "ab" * 32), ManifestFile("deep/rank-1.npz", 11)), {"seed": "1"},
)  # fmt: skip


def checkpoint(directory):
    """A small whole checkpoint of three files, one in a sub-directory."""
    (directory / "deep").mkdir(parents=True)
    files = []
    for name, data in (("a", b"alpha"), ("b", b""), ("deep/c", b"c" * 5000)):
        (directory / name).write_bytes(data)
        files.append(manifest.make_file_manifest_entry(directory / name, directory))
    return manifest.write_manifest(directory, step=7, world_size=3, files=files, meta={"k": "v"})


def verdict(directory):
    found = manifest.read_manifest(directory)
    if not isinstance(found, Manifest):
        return found
    return manifest.verify_manifest_files(directory, found, deep=True)


def test_the_documented_format(tmp_path) -> None:
    checkpoint(tmp_path / "step-7")
    document = json.loads((tmp_path / "step-7/manifest.json").read_text())
    assert [len(file.pop("sha256")) for file in document["files"]] == [64] * 3
    files = [("a", 5), ("b", 0), ("deep/c", 5000)]
    assert all({key: document.pop(key) for key in ("created_at", "checksum")}.values())
    assert document == {
        "format": "hpctl-checkpoint", "version": 1, "step": 7, "world_size": 3,
        "files": [{"path": path, "size": size} for path, size in files], "meta": {"k": "v"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda p: p.write_bytes(p.read_bytes() + b"!"), "bytes"),
        (lambda p: p.unlink(), "missing"),
        (lambda p: (p.unlink(), p.mkdir()), "not a regular file"),
        (lambda p: (p.rename(p.with_name("x")), p.symlink_to("x")), "not a regular file"),
    ],
    ids=["longer", "gone", "directory", "symlink"],
)
def test_damage_shows_without_reading(tmp_path, damage, why: str) -> None:
    whole = checkpoint(tmp_path / "c")
    damage(tmp_path / "c/deep/c")
    defect = manifest.verify_manifest_files(tmp_path / "c", whole)
    assert defect is not None
    assert "deep/c" in defect
    assert why in defect


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_flipped_byte_shows_in_depth(tmp_path_factory, data) -> None:
    directory = tmp_path_factory.mktemp("flip") / "c"
    checkpoint(directory)
    name = data.draw(st.sampled_from(["a", "deep/c", "manifest.json"]))
    raw = bytearray((directory / name).read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    was = bytes(raw)
    raw[at] ^= data.draw(st.integers(1, 255))
    (directory / name).write_bytes(raw)
    if name == "manifest.json" and _same_document(was, bytes(raw)):
        return  # one blank for another
    assert isinstance(verdict(directory), CheckpointDefect)
    shutil.rmtree(directory)


def _same_document(one: bytes, other: bytes) -> bool:
    try:
        return json.loads(one) == json.loads(other)
    except ValueError:
        return False


def test_every_truncation_of_the_manifest_is_a_defect() -> None:
    raw = manifest.encode_manifest(GOOD)
    for keep in range(len(raw) - 1):  # the last byte is the newline
        assert isinstance(manifest.decode_manifest(raw[:keep]), CheckpointDefect)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", "7"), ("step", -1), ("world_size", 0), ("created_at", "2026-01-02T03:04:05"),
        ("files", []), ("files", [{"path": "a"}]), ("meta", {"seed": 1}), ("surprise", None),
    ],
)  # fmt: skip
def test_wrong_shapes_with_a_good_checksum_are_defects(field: str, value) -> None:
    document = {**json.loads(manifest.encode_manifest(GOOD)), field: value}
    document.pop("checksum")
    document["checksum"] = hpctl_checkpoint.compute_manifest_checksum(document)
    assert isinstance(manifest.decode_manifest(json.dumps(document).encode()), CheckpointDefect)


@pytest.mark.parametrize("path", ["/etc/passwd", "../other/a", "a/../../b", "", ".", "a\0b"])
def test_paths_stay_inside(path: str, tmp_path) -> None:
    with pytest.raises(ValueError, match=r"inside|regular"):
        manifest.write_manifest(tmp_path, step=1, world_size=1, files=[ManifestFile(path, 1)])


def test_write_refuses_what_read_would(tmp_path) -> None:
    for files in ([], [ManifestFile("a", 1), ManifestFile("a", 1)], [ManifestFile("a", -1)]):
        with pytest.raises(ValueError, match=r"manifest\.json"):
            manifest.write_manifest(tmp_path, step=1, world_size=1, files=files)
    with pytest.raises(ValueError, match="negative"):
        manifest.write_manifest(tmp_path, step=-1, world_size=1, files=[ManifestFile("a", 1)])
    assert list(tmp_path.iterdir()) == []


def test_size_only_manifest_is_whole_but_not_in_depth(tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    whole = manifest.write_manifest(tmp_path, step=1, world_size=1, files=[ManifestFile("a", 3)])
    assert manifest.verify_manifest_files(tmp_path, whole) is None
    assert (
        manifest.verify_manifest_files(tmp_path, whole, deep=True)
        == "a has no checksum in the checkpoint's manifest, so hpctl cannot verify it"
    )


def test_oversized_manifest_is_refused_unread(tmp_path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(manifest.MAX_BYTES + 1)
    assert "larger" in str(manifest.read_manifest(tmp_path))


def test_storage_that_fails_is_not_a_verdict(tmp_path) -> None:
    (tmp_path / "manifest.json").symlink_to("manifest.json")  # ELOOP
    with pytest.raises(OSError, match="symbolic"):
        manifest.read_manifest(tmp_path)
