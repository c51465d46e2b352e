"""Which instance stands for which node of Slurm, by the addresses that names resolve to."""

import functools
import re
import time
from collections.abc import Mapping
from datetime import datetime

from hpctl.toolkit.addresses import resolve_ipv4
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.instance_join import InstanceNodeMapping, map_instances_to_nodes
from hpctl.vocabulary.slurm_facts import SchedulerView

NEVER = datetime(1970, 1, 1, tzinfo=UTC)


KEPT_S = 60.0
"""Slurm itself asks again only when it reads its configuration."""


ASKED_S = 5.0
"""How long one round may ask: a resolver that is away takes seconds for each name."""


class InstanceToNodeMatcher:
    """Joins views of the provider and of Slurm. One thread joins, another may `resolve`."""

    def __init__(self) -> None:
        self._of: tuple[CloudProviderView | None, Mapping[NodeName, str], Mapping[str, str]]
        self._of = (None, {}, {})
        self._last: tuple[CloudProviderView, InstanceNodeMapping] = (
            CloudProviderView(NEVER),
            InstanceNodeMapping(),
        )
        self._known: Mapping[str, str] = {}
        self._asked: dict[str, float] = {}

    @property
    def addresses(self) -> Mapping[NodeName, str]:
        """Return the NodeAddr of each node of the last join."""
        return self._of[1]

    def join(
        self, provider: CloudProviderView, slurm: SchedulerView
    ) -> tuple[CloudProviderView, InstanceNodeMapping]:
        """Return the provider's view with every instance's node as Slurm calls it, and the join
        itself."""
        before, addresses, resolved = self._of
        known = self._known
        now: Mapping[NodeName, str] = {name: node.address for name, node in slurm.nodes.items()}
        now = addresses if now == addresses else now
        if provider is not before or resolved is not known or now is not addresses:
            self._of = (provider, now, known)
            joined = map_instances_to_nodes(provider, now, known)
            self._last = (joined.of(provider), joined)
        return self._last

    def resolve(self) -> bool:
        """Ask what the NodeAddrs that are names resolve to; whether an answer changed. Blocks.

        A name with several addresses identifies no node. What no longer resolves is forgotten.
        """
        began, known = time.monotonic(), dict(self._known)
        hosts = {*self._last[1].unknown, *known}
        due = [h for h in hosts if began - self._asked.get(h, -KEPT_S) >= KEPT_S]
        for host in sorted(due, key=lambda h: self._asked.get(h, -KEPT_S)):
            if time.monotonic() - began > ASKED_S:
                break
            self._asked[host] = time.monotonic()
            known.pop(host, None)
            try:
                (address,) = resolve_ipv4(host)
            except (OSError, ValueError):
                continue
            known[host] = str(address)
        changed = known != self._known
        if changed:
            self._known = known
        return changed


def match_instances_to_nodes_once(
    provider: CloudProviderView, slurm: SchedulerView | None
) -> tuple[CloudProviderView, InstanceNodeMapping]:
    """Return instances and nodes joined, for a single reading: names are resolved if needed."""
    resolver, nodes = InstanceToNodeMatcher(), slurm or SchedulerView(provider.as_of)
    found = resolver.join(provider, nodes)
    return resolver.join(provider, nodes) if resolver.resolve() else found


@functools.lru_cache(32_768)
def make_natural_sort_key(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key that puts `n9` before `n10`."""
    key = []
    for part in re.split(r"(\d+)", name):
        numeric = part.isdecimal()
        key.append((numeric, int(part) if numeric else 0, part))
    return tuple(key)
