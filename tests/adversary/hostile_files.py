"""Files that a user lays out in the place of one of a checkpoint's, each made in a moment."""

import functools
import io
import json
import os
import pickle
import shutil
import socket
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

MARK = Path("/tmp/hpctl-hostile-pickle-ran")
GIB = 2**30
NAMES = (
    "new\nline", "escape\x1b[2J\x1b]0;owned\x07", "bell\x07", "bidi\u202egnp.exe", "csi\x9b31m",
    "isolate\u2066x", "tab\t", "delete\x7f", "$(id)", "-rf", " ", "a" * 255,
)  # fmt: skip
RAW_NAMES = (b"latin-\xe9", b"\xff\xfe\x80", b"half-\xed\xa0\x80")


class Execute:
    """A pickle of this makes MARK when something loads it."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {MARK}",)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def bound_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.close(folder)


def device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))


def link_to_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def link_to_secret(path: Path) -> None:
    path.symlink_to("/etc/shadow")


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def link_above(path: Path) -> None:
    path.symlink_to("../" * 40 + "proc/self/environ")


def link_to_nothing(path: Path) -> None:
    path.symlink_to("none")


def directory(path: Path) -> None:
    path.mkdir()


def deep_directory(path: Path) -> None:
    """1200 directories, one in the other: more than Python's calls may be nested."""
    path.mkdir()
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(1200):
        os.mkdir("d", dir_fd=held)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=held)
        os.close(held)
        held = below
    os.close(held)


def crowded_directory(path: Path) -> None:
    """More entries than hpctl looks at, of one inode."""
    path.mkdir()
    (path / "0").touch()
    for number in range(1, 4000):
        os.link(path / "0", path / str(number))


def nothing(path: Path) -> None:
    path.write_bytes(b"")


def one_byte(path: Path) -> None:
    path.write_bytes(b"\x80")


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(8 * GIB)


def sparse_behind_a_head(path: Path) -> None:
    """The first bytes are those of the file in whose place it is."""
    head = path.with_name(f"{path.name}.head").read_bytes()
    with path.open("wb") as file:
        file.write(head[: len(head) // 2])
        file.truncate(500 << 20)


def unreadable(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0)


def executed_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps(Execute(), protocol=2))


def executed_archive(path: Path) -> None:
    """What torch.load would execute."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(Execute(), protocol=2))
        archive.writestr("archive/version", b"3\n")
    path.write_bytes(out.getvalue())


@functools.cache
def pack_gigabyte() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(1024)) + packer.flush()


def packed_archive(path: Path) -> None:
    """A member that unpacks to a gigabyte."""
    packed, name = pack_gigabyte(), b"archive/data.pkl"
    sizes = struct.pack("<3L2H", 0, len(packed), GIB, len(name), 0)
    local = struct.pack("<4s5H", b"PK\3\4", 20, 0, 8, 0, 0) + sizes + name
    entry = struct.pack("<4s6H", b"PK\1\2", 20, 20, 0, 8, 0, 0) + sizes
    entry += struct.pack("<3H2L", 0, 0, 0, 0, 0) + name
    start = len(local) + len(packed)
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(entry), start, 0)
    path.write_bytes(local + packed + entry + end)


@functools.cache
def list_overlapping() -> bytes:
    """A directory of 20,000 members at one place."""
    entries = []
    for number in range(20_000):
        name = b"archive/data/%d" % number
        sizes = struct.pack("<3L2H", 0, GIB, GIB, len(name), 0)
        entry = struct.pack("<4s6H", b"PK\1\2", 20, 20, 0, 0, 0, 0) + sizes
        entries.append(entry + struct.pack("<3H2L", 0, 0, 0, 0, 0) + name)
    raw = b"".join(entries)
    return raw + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 20_000, 20_000, len(raw), 0, 0)


def archive_of_many(path: Path) -> None:
    path.write_bytes(list_overlapping())


def nested_json(path: Path) -> None:
    path.write_bytes(b'{"a":' * 200_000)


def long_number(path: Path) -> None:
    path.write_bytes(b'{"global_step":' + b"9" * 1_000_000 + b"}")


def wrong_json(path: Path) -> None:
    """Words of every wrong type under the keys that formats know."""
    wrong = {
        "global_step": "\ud800", "iteration": [], "weight_map": {"a": "\ud800", "b": "x" * 5000},
        "format": {"a": 1}, "version": "9" * 100_000, "step": -1, "files": [{"path": "/etc"}],
        "tree_metadata": {"a": {"value_metadata": 7, "key_metadata": "\ud800"}},
        "item_handlers": {"\ud800": "\ud800", "../..": "x"}, "array_metadatas": {"a": []},
        "commit_timestamp_nsecs": 1e308, "sharded_backend": "\x1b[2J", "a": "\ud800",
    }  # fmt: skip
    path.write_bytes(json.dumps(wrong).encode())


def endless_header(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}" * 100)


def header_of_all(path: Path) -> None:
    """A safetensors header of 2**64 - 1 bytes, which wraps around."""
    path.write_bytes(b"\xff" * 8 + b"{}" * 100)


def escaped_text(path: Path) -> None:
    path.write_bytes(b"\x1b[2J\x1b]0;owned\x07\xe2\x80\xae../../etc/shadow\n\0\xff" * 40)


def remove(path: Path) -> None:
    """Remove a file, or a directory of any depth."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    aside = path
    while (aside / "d").is_dir():
        # From the top: a whole chain is deeper than a path may be long.
        below = path.with_name(f"{path.name}.below")
        (aside / "d").rename(below)
        shutil.rmtree(aside)
        below.rename(path)
    shutil.rmtree(path)


HOSTILE: tuple[Callable[[Path], None], ...] = (
    fifo, bound_socket, device, link_to_endless, link_to_secret, link_to_itself, link_above,
    link_to_nothing, directory, deep_directory, crowded_directory, nothing, one_byte, sparse,
    sparse_behind_a_head, unreadable, executed_pickle, executed_archive, packed_archive,
    archive_of_many, nested_json, long_number, wrong_json, endless_header,
    header_of_all, escaped_text,
)  # fmt: skip

FOR_JSON = (nested_json, long_number, wrong_json)
"""What is read as JSON alone."""

ONCE = (deep_directory, crowded_directory, sparse_behind_a_head)
"""What takes long to make or to read: in the place of one file of a checkpoint."""
