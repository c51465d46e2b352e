"""The machine below a root: its files, programs and systemd.

Where the root is not `/`, nothing outside it is touched: there is no systemd, nothing can be
mounted, and no user has an account.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lifecycle.failure import Failure, No

QUIET_S = 120.0
"""How long a program may take that has no separate limit."""


class Machine:
    """Where the node's files are, and what the machine has."""

    def __init__(self, root: str = "/") -> None:
        self.root = Path(root)

    @property
    def real(self) -> bool:
        """Return whether this is a whole machine and not a directory that plays one."""
        return self.root == Path("/")

    def path(self, absolute: str) -> Path:
        """Return a path of the node."""
        return self.root / absolute.lstrip("/")

    def needs(self, *things: str) -> bool | No:
        """Return whether the machine has what a step cannot do without; why not otherwise."""
        for thing in things:
            if not self.real:
                return No(f"no {thing} below {self.root}")
            if thing == "systemd" and not shutil.which("systemctl"):
                return No("this machine has no systemd")
            if thing in ("accounts", "mounts", "systemd") and os.geteuid() != 0:
                return No(f"only root may change {thing}")
        return True

    def run(
        self,
        *command: str,
        timeout: float = QUIET_S,
        given: str | None = None,
        env: dict[str, str] | None = None,
        ok: tuple[int, ...] = (0,),
        quiet: bool = False,
    ) -> str:
        """What a program prints. Raises Failure with its last line; `quiet` keeps them secret."""
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if given is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={
                    **os.environ,
                    "LC_ALL": "C",
                    "DEBIAN_FRONTEND": "noninteractive",
                    **(env or {}),
                },
            )
        except OSError as error:
            raise Failure(f"{command[0]}: {error.strerror}") from error
        try:
            out, _ = process.communicate(given.encode() if given is not None else None, timeout)
        except subprocess.TimeoutExpired:
            # What it started itself goes with the step, which has a separate process group.
            process.kill()
            raise Failure(f"{command[0]} took more than {timeout:.0f} s") from None
        output = out.decode(errors="replace")
        if process.returncode not in ok:
            lines = [line.strip() for line in output.splitlines() if line.strip()]
            last = lines[-1] if lines and not quiet else "it printed nothing"
            program = " ".join(command[:3])
            raise Failure(f"{program}: exit code {process.returncode}: {last[:300]}")
        return output

    def works(self, *command: str, timeout: float = QUIET_S) -> bool:
        """Return whether a program ends with exit code 0."""
        try:
            self.run(*command, timeout=timeout)
        except Failure:
            return False
        return True

    def write(self, path: Path, text: str, mode: int = 0o644, owner: str = "") -> bool:
        """Give a file this text, whole or not at all. True where it had another."""
        if holds(path, text) and (path.stat().st_mode & 0o7777) == mode:
            return False
        path.parent.mkdir(parents=True, exist_ok=True)
        # One name: what a run that was killed left there, the next one takes.
        part = path.with_name(f".{path.name}.hpctl-part")
        descriptor = os.open(str(part), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(str(part), mode)
        if owner and os.geteuid() == 0:
            shutil.chown(str(part), owner, owner)
        os.replace(str(part), str(path))
        return True

    def install(self, source: Path, target: Path, mode: int = 0o644) -> None:
        """Copy a text file of the bundle to its place."""
        self.write(target, source.read_text(), mode)

    @property
    def running(self) -> bool:
        """Return whether systemd runs here: in a chroot, or while an image is made, it does not."""
        return self.real and Path("/run/systemd/system").is_dir()

    def has_unit(self, unit: str) -> bool:
        """Return whether a unit's file is there, masked ones not counted."""
        return self.unit_text(unit) is not None

    def unit_text(self, unit: str) -> str | None:
        """Return a unit's file; None where there is none, or it is masked."""
        for directory in (
            "/etc/systemd/system",
            "/run/systemd/system",
            "/lib/systemd/system",
            "/usr/lib/systemd/system",
        ):
            path = self.path(directory) / unit
            if path.is_symlink() and os.readlink(str(path)) == "/dev/null":
                return None
            if path.is_file():
                return path.read_text()
        return None

    def masked(self, unit: str) -> bool:
        """Return whether a unit cannot be started."""
        link = self.path("/etc/systemd/system") / unit
        return link.is_symlink() and os.readlink(str(link)) == "/dev/null"

    def up(self, unit: str) -> bool:
        """Return whether a unit starts at boot, and runs now where systemd does."""
        if not self.works("systemctl", "is-enabled", "--quiet", unit):
            return False
        return not self.running or self.works("systemctl", "is-active", "--quiet", unit)

    def start(self, unit: str, again: bool = False) -> None:
        """Have a unit start at boot, and now where systemd runs; `again` restarts it."""
        self.run("systemctl", "enable", unit)
        if not self.running:
            print(f"systemd does not run here: {unit} starts with it")
            return
        self.run("systemctl", "daemon-reload")
        try:
            self.run("systemctl", "restart" if again else "start", unit, timeout=180)
        except Failure as failure:
            raise Failure(f"{failure} ({self.last_words(unit)})") from failure

    def last_words(self, unit: str) -> str:
        """Return the last line that a unit's own processes logged: systemd's says only that they
        ended."""
        try:
            output = self.run("journalctl", f"_SYSTEMD_UNIT={unit}", "-n1", "-ocat", timeout=20)
        except Failure:
            return f"journalctl -u {unit}"
        return output.strip()[-200:] or f"journalctl -u {unit}"

    def mask(self, unit: str) -> None:
        """See to it that a unit never starts, with what runs of it stopped."""
        if self.running and self.has_unit(unit):
            self.run("systemctl", "stop", unit, timeout=180, ok=(0, 5))
        link = self.path("/etc/systemd/system") / unit
        if link.is_file() and not link.is_symlink():
            # systemctl masks no unit whose file is where its link goes: it is kept beside.
            os.replace(str(link), str(link) + ".hpctl-masked")
        if not self.masked(unit):
            self.run("systemctl", "mask", unit)


def holds(path: Path, text: str) -> bool:
    """Return whether a file is there with exactly this text."""
    try:
        return path.read_text() == text
    except (OSError, UnicodeDecodeError):
        return False
