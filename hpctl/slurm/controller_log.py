"""slurmctld's own log, followed to know when Slurm has to be read.

Slurm has no events to subscribe to. `strigger` runs a program up to 15 s after an event, only for
nodes, and keeps its registration in slurmctld's state; `EpilogSlurmctld` runs for jobs alone and
needs a line in slurm.conf. The log has a line for each change of a node's state or Reason and for
each start and end of a job, at once and at no cost for slurmctld. Its words are the same from
22.05 to 26.05.

A line never decides anything: it is a reason to read Slurm, as its words may be a user's. What the
log does not say: that a node does not respond, before slurmctld sets it DOWN (the line comes up to
300 s late: `no_resp_msg_interval` in slurmctld/controller.c), and what slurmctld did in the second
before it was killed.

Followed is a file that this process can read, of a slurmctld on this host that logs at `info` or
more. Where several controllers are configured it must be known to be the active one. Everywhere
else the log says nothing.
"""

import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.controller_news import SlurmctldLogEvent

MOST_AT_ONCE = 1024 * 1024
"""Bytes that are read in one look; where there are more, the rest is skipped, and is news."""
LONGEST_LINE = 16 * 1024
QUIET_LEVELS = frozenset({"quiet", "fatal", "error"})
"""Values of SlurmctldDebug at which the lines that count are not written."""

_DEBUG = re.compile(rb"^.{0,80}?(?:^|[\]: ])debug\d?: ")
_NODE = re.compile(rb"\bnodes?\b", re.IGNORECASE)
_RELOADED = re.compile(rb"reconfigur|slurmctld version", re.IGNORECASE)
"""slurmctld starts, or reads its configuration: it may log elsewhere from now on."""
_JOB = re.compile(rb"\bJobId=|_slurm_rpc_(?:requeue|suspend|top_job|update_job)")
"""A line of the second kind has the job's number alone: `_slurm_rpc_requeue: 4: usec=210`."""
_SILENT = re.compile(rb"Nodes .* not responding\s*$")
"""Repeated for as long as it is so: once a second where slurmctld logs at `debug`."""
_HOST = re.compile(r"(?P<name>[^\s(]+)(?:\((?P<address>[^)]*)\))?")


def classify_slurmctld_log_line(line: bytes) -> SlurmctldLogEvent:
    """Return what one line of the log says."""
    if _DEBUG.match(line):
        return SlurmctldLogEvent.NONE
    if _NODE.search(line) or _RELOADED.search(line):
        return SlurmctldLogEvent.NODE
    return SlurmctldLogEvent.JOB if _JOB.search(line) else SlurmctldLogEvent.NONE


def list_slurmctld_hosts(config: Mapping[str, str]) -> list[str]:
    """Return the hosts of slurmctld, in its configuration's words."""
    return [value for key, value in config.items() if key.startswith("SlurmctldHost[")]


def choose_slurmctld_log_file(config: Mapping[str, str], here: str) -> tuple[Path | None, str]:
    """Return the file to follow by slurmctld's configuration, or why none can be.

    `here` is the name of this host.
    """
    hosts = list_slurmctld_hosts(config)
    path, level = config.get("SlurmctldLogFile", ""), config.get("SlurmctldDebug", "")
    if not any(_is_local_controller_host(host, here) for host in hosts):
        return None, f"slurmctld runs on {', '.join(hosts)}, and this host is {here}"
    if level in QUIET_LEVELS:
        return None, f"SlurmctldDebug={level} writes no line for a node; info does"
    if not path.startswith("/"):
        return None, "SlurmctldLogFile names no file"
    return Path(path), ""


def _is_local_controller_host(host: str, here: str) -> bool:
    found = _HOST.match(host)
    if found is None:
        return False
    local = found["address"] is not None and found["address"].startswith("127.")
    return local or found["name"].partition(".")[0].lower() == here.partition(".")[0].lower()


class SlurmctldLogFollower:
    """Follows the log. For one thread."""

    def __init__(
        self,
        show_config: Callable[[], Mapping[str, str]],
        active_here: Callable[[], bool],
        here: Callable[[], str] = socket.gethostname,
    ) -> None:
        """`show_config` asks slurmctld for its configuration, and raises Unavailable.
        `active_here`: whether the slurmctld on this host is known to be the active one; asked
        where there are several."""
        self._show_config, self._active_here, self._here = show_config, active_here, here
        self._path: Path | None = None
        self._file = (0, 0)
        self._offset = 0
        self._rest = b""
        self._silent = b""
        self._several = False
        self._reopens = False

    @property
    def is_following(self) -> bool:
        """Return whether `read` has returned, or will return, each change since `open`."""
        active = not self._several or self._active_here()
        return self._path is not None and not self._reopens and active

    def open(self) -> str:
        """Ask slurmctld where its log is, and follow that from its end; one RPC and a ping.

        Return why that cannot be; empty where it can.
        """
        self._path = None
        try:
            config = self._show_config()
        except ServiceUnavailable as error:
            return str(error)
        path, trouble = choose_slurmctld_log_file(config, self._here())
        if path is None:
            return trouble
        self._several = len(list_slurmctld_hosts(config)) > 1
        if self._several and not self._active_here():
            return "which of several controllers is active is not known, or it is on another host"
        try:
            with path.open("rb", buffering=0) as file:
                self._file, self._offset = _get_file_identity_and_size(file)
        except OSError as error:
            return f"{path} cannot be read: {error.strerror}"
        self._path, self._rest, self._reopens = path, b"", False
        return ""

    def read(self) -> SlurmctldLogEvent:
        """Return the most urgent news of what was written since the last time.

        A log that was rotated is news: what was written just before is not looked for.
        """
        if self._path is None:
            return SlurmctldLogEvent.NONE
        try:
            there = self._path.stat()
            if (there.st_dev, there.st_ino) == self._file and there.st_size == self._offset:
                return SlurmctldLogEvent.NONE
            with self._path.open("rb", buffering=0) as file:
                return self._read_new_log_lines(file)
        except FileNotFoundError:
            return SlurmctldLogEvent.NONE  # between the two steps of a rotation
        except OSError:
            self._path = None
            return SlurmctldLogEvent.NODE

    def _read_new_log_lines(self, file: BinaryIO) -> SlurmctldLogEvent:
        which, size = _get_file_identity_and_size(file)
        if which != self._file or size < self._offset:
            self._file, self._offset, self._rest = which, size, b""
            return SlurmctldLogEvent.NODE
        file.seek(self._offset)
        found = file.read(MOST_AT_ONCE) or b""
        self._offset += len(found)
        *lines, self._rest = (self._rest + found).split(b"\n")
        if len(found) == MOST_AT_ONCE or len(self._rest) > LONGEST_LINE:
            self._offset, self._rest = size, b""
            return SlurmctldLogEvent.NODE
        return max(map(self._classify_new_log_line, lines), default=SlurmctldLogEvent.NONE)

    def _classify_new_log_line(self, line: bytes) -> SlurmctldLogEvent:
        """Return what a line says that no line before it has said."""
        self._reopens = self._reopens or _RELOADED.search(line) is not None
        silent = _SILENT.search(line)
        if silent is not None:
            if silent[0] == self._silent:
                return SlurmctldLogEvent.NONE
            self._silent = silent[0]
        return classify_slurmctld_log_line(line)


def _get_file_identity_and_size(file: BinaryIO) -> tuple[tuple[int, int], int]:
    """Return which file this is, and where it ends."""
    found = os.fstat(file.fileno())
    return (found.st_dev, found.st_ino), found.st_size
