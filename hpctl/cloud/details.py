"""The addresses that ListClusterNodes does not tell: a head node's file, else DescribeClusterNode.

An instance keeps its address for life, so what is known of an id holds. HyperPod writes all of them
into resource_config.json on a head node, which costs no call; it may be older than the newest
instances. Those are asked for, each once, newest first: a replacement is known at once in a cluster
of ten thousand. Calls are rationed, and end with the first refusal.
"""

from __future__ import annotations

import json
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from hpctl.cloud.classify import UNREADABLE
from hpctl.core.join import guessed, is_address
from hpctl.core.model import Instance, InstanceId, NodeName

T = TypeVar("T")

A_SECOND = 10.0
"""Calls of DescribeClusterNode that are earned in a second; the service publishes no limit."""
AT_MOST = 100
"""Calls in one view, and how many are there at the start."""
AT_ONCE = 8
RESOURCE_CONFIG = Path("/opt/ml/config/resource_config.json")
LONGEST = 64 << 20
"""Bytes of resource_config.json that are read: 10,000 instances with their labels are 3 MB."""


class ResourceConfig:
    """The address of each instance, as resource_config.json has it. For one thread."""

    def __init__(self, cluster: str, path: Path) -> None:
        self._cluster, self._path = cluster, path
        self._version: tuple[int, ...] = ()
        self._addresses: Mapping[InstanceId, str] = {}

    def addresses(self) -> Mapping[InstanceId, str]:
        """By instance id; none from another cluster's file. Read where it changed. Never raises."""
        try:
            at = self._path.stat()
            version = at.st_mtime_ns, at.st_size, at.st_ino
            if version != self._version and stat.S_ISREG(at.st_mode) and at.st_size <= LONGEST:
                self._version = version
                with self._path.open("rb") as file:
                    self._addresses = _addresses(json.loads(file.read(LONGEST)), self._cluster)
        except (OSError, ValueError, RecursionError):
            pass  # DescribeClusterNode tells what this does not; an address once read stays right
        return self._addresses


def _addresses(said: Any, cluster: str) -> Mapping[InstanceId, str]:
    whose = _of(said, "ClusterConfig", dict)
    if cluster not in (whose.get("ClusterName"), whose.get("ClusterArn")):
        return {}
    found: dict[InstanceId, set[str]] = {}
    for group in _of(said, "InstanceGroups", list):
        for one in _of(group, "Instances", list):
            key, address = _of(one, "InstanceId", str), _of(one, "CustomerIpAddress", str)
            if is_address(address):
                found.setdefault(InstanceId(key), set()).add(address)
    return {key: those.pop() for key, those in found.items() if len(those) == 1}


def _of(said: Any, key: str, kind: type[T]) -> T:
    """A value of this kind; an empty one where there is none."""
    value = said.get(key) if isinstance(said, dict) else None
    return value if isinstance(value, kind) else kind()


class Details:
    """What is known of one cluster's instances beside their list. For one thread."""

    def __init__(
        self,
        cluster: str,
        describe: Callable[..., Mapping[str, Any]],
        file: Path = RESOURCE_CONFIG,
    ) -> None:
        self._cluster, self._describe = cluster, describe
        self._file = ResourceConfig(cluster, file)
        self._known: dict[InstanceId, tuple[str, str]] = {}
        self._asked = Counter[InstanceId]()
        self._left, self._at = float(AT_MOST), time.monotonic()
        self._refused = False

    def complete(self, listed: Sequence[Instance]) -> list[Instance]:
        """The instances with their addresses, as far as these may be asked for. Never raises."""
        ids = {i.id for i in listed}
        self._known = {key: said for key, said in self._known.items() if key in ids}
        self._asked = Counter({key: n for key, n in self._asked.items() if key in ids})
        lacking = [i for i in listed if not i.address and i.id not in self._known]
        told = self._file.addresses() if lacking else {}
        self._known |= {i.id: (told[i.id], "") for i in lacking if i.id in told}
        lacking = [i for i in lacking if i.id not in self._known]
        lacking.sort(key=lambda i: i.launched.timestamp() if i.launched else 0.0, reverse=True)
        lacking.sort(key=lambda i: self._asked[i.id])
        self._ask([i.id for i in lacking[: self._allowance()]])
        return [self._completed(i) for i in listed]

    def _allowance(self) -> int:
        now = time.monotonic()
        self._left = min(AT_MOST, self._left + (now - self._at) * A_SECOND)
        self._at = now
        return int(self._left)

    def _ask(self, ids: Sequence[InstanceId]) -> None:
        if not ids:
            return
        self._left -= len(ids)
        self._asked.update(ids)
        self._refused = False
        with ThreadPoolExecutor(min(AT_ONCE, len(ids))) as pool:
            said = pool.map(self._one, ids)
        self._known.update({key: one for key, one in zip(ids, said, strict=True) if one[0]})

    def _one(self, instance: InstanceId) -> tuple[str, str]:
        """Address and DNS name; nothing where it has none yet, is gone, or nobody may ask now."""
        if self._refused:
            return "", ""
        try:
            node = self._describe(ClusterName=self._cluster, NodeId=instance)["NodeDetails"]
            address, dns = node.get("PrivatePrimaryIp"), node.get("PrivateDnsHostname")
        except (BotoCoreError, ClientError, *UNREADABLE) as error:
            gone = isinstance(error, ClientError) and "NotFound" in str(error.response)
            self._refused |= not gone
            return "", ""
        return str(address or ""), str(dns or "")

    def _completed(self, instance: Instance) -> Instance:
        if instance.id not in self._known:
            return instance
        address, dns = self._known[instance.id]
        dns = instance.dns or dns
        guess = NodeName(guessed(address, dns))
        return replace(instance, address=address, dns=dns, node=guess)
