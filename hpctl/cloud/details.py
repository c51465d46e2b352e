"""The addresses that ListClusterNodes does not tell: DescribeClusterNode, once an instance.

An instance keeps its address for life, so each is asked for once, newest first: a replacement is
known at once in a cluster of ten thousand. Calls are rationed, and end with the first refusal.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from hpctl.cloud.classify import UNREADABLE
from hpctl.core.join import guessed
from hpctl.core.model import Instance, InstanceId, NodeName

A_SECOND = 10.0
"""Calls of DescribeClusterNode that are earned in a second; the service publishes no limit."""
AT_MOST = 100
"""Calls in one view, and how many are there at the start."""
AT_ONCE = 8


class Details:
    """What DescribeClusterNode said of one cluster's instances. For one thread."""

    def __init__(self, cluster: str, describe: Callable[..., Mapping[str, Any]]) -> None:
        self._cluster, self._describe = cluster, describe
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
