"""The files of all nodes as one place, so that each format's own proof judges a step."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from threading import Event
from typing import Any

from msgspec import Struct, field

from hpctl.checkpoints.fast.node import NodeSaveStore
from hpctl.checkpoints.fast.peer import (
    FileAnswerBody,
    NoHelperListeningError,
    PeerConnection,
    PeerError,
)
from hpctl.checkpoints.fast.spec import FastCheckpointSaveSpec
from hpctl.checkpoints.files import ObjectInfo

CONNECT_S = 1.0
RETRY_S = 3.0
"""Time after which a helper that did not answer is asked again. Where none runs, that is known
immediately: the next one may be asked as soon as it starts."""


class PeerConnections:
    """The connections of a helper, or of a restore, to the helpers of a job. For one thread."""

    def __init__(
        self,
        spec: FastCheckpointSaveSpec,
        own: NodeSaveStore | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        self.spec, self._own, self._retry_s = spec, own, retry_s
        self._open: dict[str, PeerConnection] = {}
        self._silent: dict[str, float] = {}

    def ask(self, host: str, what: str, **given: Any) -> dict[str, Any]:
        """Send a request and return the answer. Raises PeerError."""
        if self._own is not None and host == self._own.host:
            answer = self._own.handle({"do": what, **given})
            assert not isinstance(answer, FileAnswerBody)
            return answer
        remote: dict[str, Any] = self._call_peer(host, lambda peer: peer.ask(what, **given))
        return remote

    def read(self, host: str, **given: Any) -> bytes:
        """Read some bytes of a file. Raises PeerError, OSError."""
        if self._own is not None and host == self._own.host:
            answer = self._own.handle({"do": "read", **given})
            assert isinstance(answer, FileAnswerBody)
            assert isinstance(answer.content, bytes)
            return answer.content
        raw: bytes = self._call_peer(host, lambda peer: peer.read("read", **given))
        return raw

    def each(self, what: str, hosts: Iterable[str] = (), **given: Any) -> dict[str, dict[str, Any]]:
        """Return the answers of those that answer."""
        answers = {}
        for host in hosts or self.spec.hosts:
            with suppress(OSError):
                answers[host] = self.ask(host, what, **given)
        return answers

    def forget_unresponsive_hosts(self) -> None:
        """Ask also those that have just not answered."""
        self._silent.clear()

    def finish(
        self, hosts: Iterable[str], kind: str, limit_s: float, halt: Event | None = None
    ) -> list[str]:
        """Wait for the tasks of a kind that were begun on these hosts; return what went wrong."""
        waiting = list(hosts)
        errors: list[str] = []
        deadline = time.monotonic() + limit_s
        while waiting:
            if halt is not None and halt.is_set():
                return [*errors, "given up"]
            for host in tuple(waiting):
                try:
                    state = self.ask(host, "task", kind=kind)
                except OSError as error:
                    state = {"running": False, "errors": [f"{host}: {error}"]}
                if not state["running"]:
                    waiting.remove(host)
                    errors += state["errors"]
            if waiting and time.monotonic() > deadline:
                return [*errors, f"not done after {limit_s:g} s on {', '.join(waiting)}"]
            time.sleep(0.05 if waiting else 0.0)
        return errors

    def close(self) -> None:
        """End all connections."""
        for peer in self._open.values():
            peer.close()
        self._open.clear()

    def _call_peer(self, host: str, request: Any) -> Any:
        now = time.monotonic()
        if self._silent.get(host, now) > now:
            raise PeerError(f"{host} does not answer")
        try:
            if host not in self._open:
                self._open[host] = PeerConnection(self.spec, host, CONNECT_S)
            return request(self._open[host])
        except OSError as error:
            peer = self._open.pop(host, None)
            if peer is None and not isinstance(error, NoHelperListeningError):
                self._silent[host] = now + self._retry_s
            if peer is not None:
                peer.close()
            raise


class NodeFileObject(Struct, frozen=True):
    """One file of a node, as an object: `STEP/PATH`, or `STEP` where the step is a single file."""

    key: str
    size: int
    modified_ns: int
    etag: str
    host: str = ""
    mtime_ns: int = 0
    inode: int = 0


class NodeFilesObjectStore(Struct, frozen=True):
    """The files that ranks have written since the start, over all nodes. Of a name that several
    nodes have, the first node's counts."""

    peers: PeerConnections
    parts: Mapping[str, NodeFileObject]
    url: str = "fast:"
    also: Mapping[str, tuple[NodeFileObject, ...]] = field(default_factory=dict)
    """All files by step, those of the same name too."""

    def split_step_file_by_node(self, step: str) -> list[NodeFilesObjectStore]:
        """Return, of a step that is a single file on several nodes, each file but the first as a
        separate union."""
        others = [part for part in self.also[step] if part.key == step][1:]
        return [
            NodeFilesObjectStore(self.peers, {step: part}, self.url, {step: (part,)})
            for part in others
        ]

    def list(self, prefix: str, *, recursive: bool) -> Iterable[ObjectInfo]:
        """List entries as an object store does."""
        seen = set()
        for key, part in self.parts.items():
            if not key.startswith(prefix):
                continue
            inside, slash, _ = key[len(prefix) :].partition("/")
            if recursive or not slash:
                yield part
            elif inside not in seen:
                seen.add(inside)
                yield NodeFileObject(f"{prefix}{inside}/", 0, 0, "")

    def read(self, listed: ObjectInfo, offset: int, length: int) -> tuple[bytes, int | None]:
        """Read bytes of a file that is unchanged since it was listed. Raises OSError."""
        part = self.parts[listed.key]
        step, _, path = part.key.partition("/")
        tag = [part.size, part.mtime_ns, part.inode]
        given = {"step": step, "path": path, "offset": offset, "length": length, "tag": tag}
        return self.peers.read(part.host, **given), part.modified_ns

    def read_original_mtime_ns(self, listed: ObjectInfo) -> int | None:
        """Return the file's own time, by this node's clock."""
        return self.parts[listed.key].modified_ns

    def get_part_size(self, listed: ObjectInfo) -> int:
        """Return the whole size: no digests are kept, so that a file is one stretch."""
        return max(1, listed.size)

    def matches(self, listed: ObjectInfo, digests: Sequence[bytes]) -> bool | None:
        """Return None: no digests are kept."""
        return None


def merge_node_inventories(
    peers: PeerConnections, found: Mapping[str, dict[str, Any]], ahead: Mapping[str, int]
) -> NodeFilesObjectStore:
    """Return, of the inventories that were answered, the files of this start.

    `ahead`: by how many ns each node's clock is ahead of this one.
    """
    parts: dict[str, NodeFileObject] = {}
    also: dict[str, list[NodeFileObject]] = {}
    for host in peers.spec.hosts:
        mine = found.get(host)
        for step, files in (mine or {"live": {}})["live"].items():
            for path, size, mtime_ns, inode in files:
                if mine is None or mtime_ns < mine["begun"]:
                    continue
                when, key = mtime_ns - ahead.get(host, 0), f"{step}/{path}" if path else step
                part = NodeFileObject(
                    key, size, when, f"{inode}-{size}-{mtime_ns}", host, mtime_ns, inode
                )
                parts.setdefault(key, part)
                also.setdefault(step, []).append(part)
    return NodeFilesObjectStore(
        peers, parts, also={step: tuple(each) for step, each in also.items()}
    )
