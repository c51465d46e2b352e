"""What ranks say of their progress, and where it arrives: bounded memory, never an exception.

A note is one line, `step=12 loss=0.3 rank=0`. In a job's log, where other lines stand between them,
`hpctl-progress ` goes before. Bytes come from anywhere: what is no note is None.

Ranks on this node alone use a unix socket in a directory that only their user may enter. Ranks on
several nodes use UDP with a secret, which is in their environment (why: ADR 0021). The kernel
drops datagrams without it, so that a flood of them takes no room in the socket from those of the
ranks. Any program may also append lines to a file, which is read as it grows.
"""

from __future__ import annotations

import ctypes
import hmac
import os
import re
import secrets
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import msgspec

from hpctl.jobs.logs.engine import LogFollower
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import NodeName

PREFIX = b"hpctl-progress "
LONGEST = 4096
"""Bytes of a line that are read; a longer one is no note."""
HIGHEST_RANK = 1 << 20
HIGHEST_STEP = 1 << 53
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}\Z")
_LABEL = re.compile(rb"\s*(?:\[[^\]]*\])?\s*([0-9]{1,7}): *\Z")
_TRUE = ("1", "true", "on", "yes")
_FALSE = ("0", "false", "off", "no")


class ProgressNote(msgspec.Struct, frozen=True):
    """What one line says of what hpctl judges by. None and empty: it does not say.

    With `checkpoint`, `step` is the checkpoint's and `seconds` what the save took. `lost` counts
    the sender's lines that did not go out just before this one.
    """

    step: int | None = None
    loss: float | None = None
    tokens: float | None = None
    seconds: float | None = None
    rank: int | None = None
    node: NodeName | None = None
    pid: int | None = None
    gpu: str = ""
    phase: str = ""
    checkpoint: str = ""
    saving: bool | None = None
    done: bool = False
    restart: bool = False
    """A launcher starts all ranks again, inside the same step."""
    lost: int = 0


def parse_progress_note(raw: bytes) -> ProgressNote | None:
    """Read one line. None where it is no note: torn, too long, not text, or saying nothing."""
    if len(raw) > LONGEST:
        return None
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        return None
    return _build_progress_note(_split_progress_note_fields(text))


def read_secret_from_datagram(raw: bytes) -> bytes:
    """Return the secret that a datagram begins with, empty where there is none."""
    first, _, _ = raw.partition(b" ")
    return first.removeprefix(b"token=") if first.startswith(b"token=") else b""


def find_progress_notes_in_log(block: bytes) -> list[ProgressNote]:
    """Return the notes among whole lines of a log. `srun --label` names the rank where they do
    not."""
    found = []
    at = block.find(PREFIX)
    while at >= 0:
        begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
        end = len(block) if end < 0 else end
        note = parse_progress_note(block[at + len(PREFIX) : end])
        if note is not None:
            label = _LABEL.match(block[begin:at])
            if note.rank is None and label:
                note = _add_rank_to_progress_note(note, int(label[1]))
            found.append(note)
        at = block.find(PREFIX, end)
    return found


def _add_rank_to_progress_note(note: ProgressNote, rank: int) -> ProgressNote:
    return msgspec.structs.replace(note, rank=rank) if rank < HIGHEST_RANK else note


def _split_progress_note_fields(text: str) -> dict[str, str]:
    """Split a note into keys and values, still as text."""
    pairs = [word.partition("=") for word in text.split()]
    if "%" in text:
        return {name: unquote(value) for name, equals, value in pairs if equals}
    return {name: value for name, equals, value in pairs if equals}


def _build_progress_note(fields: dict[str, str]) -> ProgressNote | None:
    step = _parse_integer_note_field(fields, "step", HIGHEST_STEP)
    keys = fields.keys()
    phase = _parse_text_note_field(fields, "phase", 64) if "phase" in keys else ""
    checkpoint = _parse_text_note_field(fields, "checkpoint", 1024) if "checkpoint" in keys else ""
    saving = _parse_boolean(fields["saving"]) if "saving" in keys else None
    done = "done" in keys and _parse_boolean(fields["done"]) is True
    restart = "restart" in keys and _parse_boolean(fields["restart"]) is True
    if step is None and not (phase or checkpoint or done or restart) and saving is None:
        return None
    node = fields.get("node", "")
    return ProgressNote(
        step=step,
        loss=_parse_number(fields.get("loss")),
        tokens=_parse_number(fields.get("tokens")),
        seconds=_parse_number(fields.get("seconds")),
        rank=_parse_integer_note_field(fields, "rank", HIGHEST_RANK),
        node=NodeName(node) if _NODE.match(node) else None,
        pid=_parse_integer_note_field(fields, "pid", 1 << 22),
        gpu=_parse_text_note_field(fields, "gpu", 64) if "gpu" in keys else "",
        phase=phase,
        checkpoint=checkpoint,
        saving=saving,
        done=done,
        restart=restart,
        lost=_parse_integer_note_field(fields, "lost", HIGHEST_STEP) or 0,
    )


def _parse_boolean(text: str) -> bool | None:
    lower = text.lower()
    return True if lower in _TRUE else False if lower in _FALSE else None


def _parse_integer_note_field(fields: dict[str, str], name: str, bound: int) -> int | None:
    text = fields.get(name)
    if text is None:
        return None
    # Only ASCII digits: int() also takes other scripts', signs and underscores.
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        return None
    value = int(text)
    return value if value < bound else None


def _parse_number(text: str | None) -> float | None:
    if text is None or len(text) > 64 or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _parse_text_note_field(fields: dict[str, str], name: str, longest: int) -> str:
    text = fields.get(name, "")
    return text if len(text) <= longest and text.isprintable() else ""


KEPT = 100_000
"""Notes that wait to be taken; more push out the oldest, and are counted as dropped."""
BUFFER = 4 << 20
"""Bytes that the kernel is asked to keep for the thread; it may grant less."""
LONGEST_PATH = 100
"""A unix socket's path may have 107 bytes (unix(7)); some are left for the socket's name."""
_LOOK = 0.2
"""Seconds after which the thread looks whether it is to end."""


class ReceivedProgressNote(msgspec.Struct, frozen=True):
    """A note, and when it arrived: seconds of the monotonic clock."""

    note: ProgressNote
    at: float


class ProgressNoteListener:
    """A receiver of notes, until it is closed. `address` is what HPCTL_PROGRESS is set to."""

    def __init__(
        self, sock: socket.socket, address: str, *, token: str = "", directory: Path | None = None
    ) -> None:
        self.address = address
        self.dropped = 0
        """Datagrams that were no note, had no right to be one, or were pushed out. Those that the
        kernel drops are not counted."""
        self._socket, self._token, self._directory = sock, token.encode(), directory
        self._heard: deque[ReceivedProgressNote] = deque()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        sock.settimeout(_LOOK)
        self._thread = threading.Thread(
            target=self._receive_progress_note_datagrams, name="progress", daemon=True
        )
        self._thread.start()

    def __enter__(self) -> ProgressNoteListener:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def take(self) -> list[ReceivedProgressNote]:
        """Return what arrived since the last call, in its order."""
        with self._lock:
            heard, self._heard = self._heard, deque()
        return list(heard)

    def close(self) -> None:
        """Stop listening. What was received can still be read."""
        self._closing.set()
        self._thread.join(timeout=25 * _LOOK)
        self._socket.close()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _receive_progress_note_datagrams(self) -> None:
        while not self._closing.is_set():
            try:
                # One byte more than a note may have, to recognize a longer one.
                raw = self._socket.recv(LONGEST + 1)
            except TimeoutError:
                continue
            except OSError:
                # An ICMP error, or no memory for a moment: neither ends the listening.
                self._closing.wait(0.01)
                continue
            self._add_received_progress_note(raw)

    def _add_received_progress_note(self, raw: bytes) -> None:
        allowed = not self._token or hmac.compare_digest(
            read_secret_from_datagram(raw), self._token
        )
        note = parse_progress_note(raw) if allowed else None
        if note is None:
            self.dropped += 1
            return
        with self._lock:
            if len(self._heard) >= KEPT:
                self._heard.popleft()
                self.dropped += 1
            self._heard.append(ReceivedProgressNote(note, time.monotonic()))


def open_progress_note_listener(
    peers: Sequence[str] = (), directory: Path | None = None
) -> ProgressNoteListener:
    """Listen for ranks on this node, or, where `peers` names others' hosts, on all of them.

    `directory` is where the unix socket's own directory is made; by default the temporary one.
    Raises HpctlError where no socket can be had.
    """
    try:
        return _open_udp_socket_listener(peers) if peers else _open_unix_socket_listener(directory)
    except OSError as error:
        raise HpctlError(
            "hpctl run cannot open a socket to receive the ranks' progress: "
            f"{error.strerror or error}",
            "check that TMPDIR is writable, and that the nodes' names resolve here (getent hosts "
            "NODE)",
        ) from error


def _open_unix_socket_listener(directory: Path | None) -> ProgressNoteListener:
    base = Path(directory or tempfile.gettempdir())
    if len(os.fsencode(base)) > LONGEST_PATH - 40:
        base = Path("/tmp")  # noqa: S108 -- mkdtemp makes a directory of 0700 in it
    own = Path(tempfile.mkdtemp(prefix="hpctl-progress-", dir=base))
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        sock.bind(str(own / "s"))
    except OSError:
        sock.close()
        shutil.rmtree(own, ignore_errors=True)
        raise
    return ProgressNoteListener(sock, f"unix:{own / 's'}", directory=own)


def _open_udp_socket_listener(peers: Sequence[str]) -> ProgressNoteListener:
    family, host = _find_local_address(peers)
    token = secrets.token_hex(16)
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        _attach_datagram_prefix_filter(sock, f"token={token[: len(token) // 2]}".encode())
        sock.bind((host, 0))
    except OSError:
        sock.close()
        raise
    port = sock.getsockname()[1]
    shown = f"[{host}]" if family == socket.AF_INET6 else host
    return ProgressNoteListener(sock, f"udp:{shown}:{port},{token}", token=token)


_SO_ATTACH_FILTER = 26
_INSTRUCTION = struct.Struct("=HBBI")
_LOAD = {4: 0x20, 2: 0x28, 1: 0x30}
"""BPF_LD | BPF_ABS of so many bytes (linux/bpf_common.h): outside the datagram it drops it."""
_EQUAL, _RETURN = 0x15, 0x06
_UDP_HEAD = 8


def _attach_datagram_prefix_filter(sock: socket.socket, prefix: bytes) -> None:
    """Have the kernel drop what does not begin with `prefix`, before it takes room in the socket.

    Without this a user of the node who sends a million datagrams a second fills the socket, and
    the run seems to hang. Where a kernel has no such filter, the token is compared here only.

    `prefix` holds half of the token: a datagram over loopback is compared while its sender waits,
    so that the time it takes might show how much of a guess is right. The other half decides.
    """
    words: list[bytes] = []
    while prefix:
        size = next(size for size in _LOAD if size <= len(prefix))
        words.append(prefix[:size])
        prefix = prefix[size:]
    program, at = b"", _UDP_HEAD
    for number, word in enumerate(words):
        to_drop = 2 * (len(words) - number) - 1
        program += _INSTRUCTION.pack(_LOAD[len(word)], 0, 0, at)
        program += _INSTRUCTION.pack(_EQUAL, 0, to_drop, int.from_bytes(word, "big"))
        at += len(word)
    program += _INSTRUCTION.pack(_RETURN, 0, 0, 0xFFFFFFFF) + _INSTRUCTION.pack(_RETURN, 0, 0, 0)
    code = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // _INSTRUCTION.size, ctypes.addressof(code))
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, head)


def _find_local_address(peers: Sequence[str]) -> tuple[socket.AddressFamily, str]:
    """Return this node's address on the way to the first of the peers whose name resolves."""
    failure: OSError = OSError("no peer")
    for peer in peers:
        try:
            family, kind, proto, _, where = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, proto) as sock:
                # No datagram is sent: the kernel chooses the route, and with it the address.
                sock.connect(where)
                return family, sock.getsockname()[0]
        except OSError as error:
            failure = error
    raise failure


MOST_READ = 64
"""Blocks that one `take` reads at most: a file that grows faster must not hold its caller."""


class ProgressNoteFileReader:
    """A reader of notes from a file, through its replacement and truncation; it may not be there
    yet."""

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        """Open the file. `at_end` skips what is there already at the first `take`."""
        self.address = f"file:{path}"
        self.dropped = 0
        """Lines that were no note."""
        self._follower = LogFollower(path, at_end=at_end)

    def take(self) -> list[ReceivedProgressNote]:
        """Return the new lines' notes. A file that cannot be read now gives none; it may be
        later."""
        heard: list[ReceivedProgressNote] = []
        for _ in range(MOST_READ):
            try:
                block, all_of_it = self._follower.read()
            except HpctlError:
                break
            at = time.monotonic()
            for line in block.splitlines():
                note = parse_progress_note(line)
                if note is None:
                    self.dropped += bool(line.strip())
                else:
                    heard.append(ReceivedProgressNote(note, at))
            if all_of_it:
                break
        return heard

    def close(self) -> None:
        """Let go of the file."""
        self._follower.close()
