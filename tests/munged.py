"""Real munged daemons for tests: as many as wanted, each with its own socket and origin."""

import os
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from hpctl.wire import munge
from tests.waiting import PATIENCE_S, until

ADDRESSES = {"n1": "127.0.1.2", "n2": "127.0.1.3"}
"""What Slurm would say the nodes' addresses are."""


class Realm(Struct, frozen=True):
    """A head node's munged, two nodes' with the same key, and a stranger's with another."""

    head: Path
    n1: Path
    n2: Path
    stranger: Path


@contextmanager
def public_directory():
    """A temporary directory that other users may enter: pytest's own are closed to them."""
    directory = Path(tempfile.mkdtemp(prefix="hpctl-munge-"))
    directory.chmod(0o711)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def munged(directory: Path, name: str, key: Path, origin: str):
    """One munged, ready to serve; the value is its socket."""
    socket = directory / f"{name}.socket"
    command = [
        shutil.which("munged", path=f"{os.environ['PATH']}:/usr/sbin") or "munged",
        "--foreground", "--force", f"--key-file={key}", f"--socket={socket}",
        f"--pid-file={directory / name}.pid", f"--seed-file={directory / name}.seed",
        f"--log-file={directory / name}.log", f"--origin={origin}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(socket, process)
        yield socket
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _await(socket: Path, process: subprocess.Popen[bytes]) -> None:
    def serves() -> bool:
        try:
            munge.encode_munge_credential(b"", socket)
        except munge.MungeUnavailable:
            assert process.poll() is None, "munged ended"
            return False
        return True

    until(serves)


@contextmanager
def realm():
    """Four munged on loopback addresses of their own."""
    with ExitStack() as stack:
        directory = stack.enter_context(public_directory())
        key, other = directory / "key", directory / "other.key"
        for path in (key, other):
            path.write_bytes(os.urandom(128))
            path.chmod(0o600)
        yield Realm(
            head=stack.enter_context(munged(directory, "head", key, "127.0.1.1")),
            n1=stack.enter_context(munged(directory, "n1", key, ADDRESSES["n1"])),
            n2=stack.enter_context(munged(directory, "n2", key, ADDRESSES["n2"])),
            stranger=stack.enter_context(munged(directory, "stranger", other, ADDRESSES["n1"])),
        )
