"""The blocks of a zstd frame, followed to its end without decompressing."""

import importlib
import os
import sys

import pytest

from hpctl.checkpoints.files import IncompleteCheckpointError, open_file
from hpctl.checkpoints.formats.zstd_frame import validate_zstd_blocks

ZSTD = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"


def follow(path, raw: bytes, most: int = 1000) -> int:
    path.write_bytes(raw)
    with open_file(path, "") as file:
        return validate_zstd_blocks(file, most)


@pytest.fixture
def zstd():
    try:
        return importlib.import_module(ZSTD)
    except ModuleNotFoundError:
        pytest.skip("NOT TESTED: backports.zstd is not installed")


CONTENTS = {
    "empty": b"",
    "one byte": b"x",
    "all the same": bytes(500_000),
    "random": os.urandom(500_000),
    "text": b"".join(b"%d " % n for n in range(100_000)),
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.parametrize("checksum", [0, 1])
def test_a_whole_frame_and_each_cut_of_it(tmp_path, zstd, name, checksum):
    options = {zstd.CompressionParameter.checksum_flag: checksum}
    raw = zstd.compress(CONTENTS[name], options=options)
    blocks = follow(tmp_path / "chunk", raw)
    assert blocks == max(1, -(-len(CONTENTS[name]) // (128 << 10)))
    step = max(1, len(raw) // 50)
    for length in (*range(0, len(raw), step), len(raw) - 1):
        with pytest.raises(IncompleteCheckpointError):
            follow(tmp_path / "chunk", raw[:length])
    with pytest.raises(IncompleteCheckpointError, match="is damaged: its data ends at"):
        follow(tmp_path / "chunk", raw + b"x")


def test_what_is_no_frame_is_refused(tmp_path):
    for raw, why in (
        (b"", "ends at byte 0"),
        (b"PK\3\4 something", "does not begin as compressed data does"),
        (bytes.fromhex("28b52ffd") + bytes(40), "cut|damaged"),
        (bytes.fromhex("28b52ffd2000 070000"), "an unknown kind of block"),
    ):
        with pytest.raises(IncompleteCheckpointError, match=why):
            follow(tmp_path / "chunk", raw)


def test_it_stops_after_so_many_blocks(tmp_path, zstd):
    raw = zstd.compress(os.urandom(1 << 20))
    assert follow(tmp_path / "chunk", raw) == 8
    assert follow(tmp_path / "chunk", raw[:-1], most=3) == 3
