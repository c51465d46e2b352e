"""Which instance stands for which Slurm node. Pure: what names resolve to is an argument.

Slurm's node names need not tell an address: HyperPod names nodes `ip-10-1-0-3`, or by instance
group (`UseInstanceNames`), and the API leaves PrivateDnsHostname out where it likes. NodeAddr is
what slurmctld itself reaches a node by, so it decides first; then the DNS name, then the node's
name. Where both addresses are known and differ, no name makes them one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from ipaddress import ip_address
from itertools import chain

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.vocabulary.cloud_facts import LEAVING, CloudProviderView, Instance
from hpctl.vocabulary.identity import InstanceId, NodeName

_NODES = 20_000
"""So many hosts are remembered: a cluster is joined again each time the cloud was read."""
_IP_HOST = re.compile(r"ip-(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})\Z")


class InstanceNodeMapping(Struct, frozen=True):
    """`instances`: the one that stands for each node, its `node` set. `unjoined`: of a node or an
    instance id, why it is joined to nothing although something has its address or name.
    `unknown`: the NodeAddrs that are names, and that no instance is known to have.
    """

    instances: Mapping[NodeName, Instance] = field(default_factory=dict)
    unjoined: Mapping[str, str] = field(default_factory=dict)
    unknown: frozenset[str] = frozenset()

    def of(self, provider: CloudProviderView) -> CloudProviderView:
        """Return the provider's view with each instance's `node` as Slurm calls it; None for
        none."""
        mine = {i.id: i for i in self.instances.values()}
        named = {
            key: mine[key] if key in mine else replace(i, node=None) if i.node is not None else i
            for key, i in provider.instances.items()
        }
        return replace(provider, instances=named)


class _SlurmNodeIndex:
    """Slurm's nodes by address, by NodeAddr where that is a name, and by their own name."""

    def __init__(self, addresses: Mapping[NodeName, str], resolved: Mapping[str, str]) -> None:
        self.addresses = addresses
        self.known: dict[NodeName, str] = {}
        self._by_address: dict[str, list[NodeName]] = {}
        self._by_host: dict[str, list[NodeName]] = {}
        self._by_name: dict[str, list[NodeName]] = {}
        for name, host in addresses.items():
            self._by_name.setdefault(name.lower(), []).append(name)
            plain = is_ip_address(host)
            for label in () if plain else _list_dns_labels(host):
                self._by_host.setdefault(label, []).append(name)
            address = (
                host if plain else parse_address_from_host_name(host) or resolved.get(host, "")
            )
            if address:
                self.known[name] = address
                self._by_address.setdefault(address, []).append(name)

    def of(self, instance: Instance) -> tuple[int, Sequence[NodeName]]:
        """Return the nodes that it may stand for, and by what: 0 address, 1 NodeAddr's name, 2
        name."""
        labels = _list_dns_labels(instance.dns) | (
            {instance.node.lower()} if instance.node else set()
        )
        here = self._by_address.get(instance.address) if instance.address else None
        if here:
            named = [name for name in here if name.lower() in labels]
            return 0, named if len(named) == 1 else here
        for rank, index in ((1, self._by_host), (2, self._by_name)):
            nodes = chain.from_iterable(index.get(label, ()) for label in sorted(labels))
            found = dict.fromkeys(nodes)
            fit = [n for n in found if not (instance.address and n in self.known)]
            if fit:
                return rank, fit
        return 2, ()


def map_instances_to_nodes(
    provider: CloudProviderView, addresses: Mapping[NodeName, str], resolved: Mapping[str, str]
) -> InstanceNodeMapping:
    """Join a provider's list to the NodeAddr of each Slurm node; `resolved`: of those, the names'.

    An instance on its way out yields to its successor. Of two that live and have one address
    neither is taken, and nor is one whose address several nodes have. An instance that no node of
    Slurm's fits keeps the provider's guess at its name, unless a node of that name is another's.
    """
    nodes, why = _SlurmNodeIndex(addresses, resolved), dict[str, str]()
    claims: dict[NodeName, list[tuple[int, Instance]]] = {}
    for instance in provider.instances.values():
        rank, found = nodes.of(instance)
        if len(found) > 1:
            what = instance.address or instance.dns or instance.node
            why[instance.id] = f"{what} fits {len(found)} Slurm nodes: {fold_hostlist(found[:8])}"
        elif found:
            claims.setdefault(found[0], []).append((rank, instance))
        elif instance.node is not None and instance.node not in addresses:
            claims.setdefault(instance.node, []).append((rank, instance))
    joined: dict[NodeName, Instance] = {}
    for name, those in claims.items():
        best = min(rank for rank, _ in those)
        rivals = [instance for rank, instance in those if rank == best]
        one = _choose_active_instance(rivals)
        if one is not None:
            joined[name] = one if one.node == name else replace(one, node=name)
        else:
            ids = ", ".join(sorted(i.id for i in rivals))
            why[name] = f"{ids} all have its address or name"
            why.update(dict.fromkeys((i.id for i in rivals), f"so has another: {ids}, of {name}"))
    left = addresses.keys() - nodes.known.keys() - joined.keys()
    return InstanceNodeMapping(joined, why, frozenset(addresses[name] for name in left) - {""})


def _choose_active_instance(rivals: Iterable[Instance]) -> Instance | None:
    """Return the one that lives; of those that all are on their way out the newest; None where
    unsure."""
    those = list(rivals)
    alive = [i for i in those if i.status not in LEAVING]
    if alive or len(those) == 1:
        return (alive or those)[0] if len(alive or those) == 1 else None
    times = sorted((i.launched, i.id) for i in those if i.launched is not None)
    if len(times) < len(those) or times[-1][0] == times[-2][0]:
        return None
    return next(i for i in those if i.id == InstanceId(times[-1][1]))


@lru_cache(_NODES)
def parse_address_from_host_name(host: str) -> str:
    """Return the address that a host name of the form ip-10-1-0-3 spells; else nothing."""
    match = _IP_HOST.match(host.partition(".")[0])
    return ".".join(match.groups()) if match else ""


def guess_hyperpod_node_name(address: str, dns: str) -> str:
    """HyperPod's usual node name: the host's, else the one that the address makes; else nothing."""
    return dns.partition(".")[0] or (f"ip-{address.replace('.', '-')}" if address else "")


@lru_cache(2 * _NODES)
def _list_dns_labels(host: str) -> frozenset[str]:
    """Return a DNS name in full and its first label, in lower case."""
    return frozenset(label.lower() for label in (host, host.partition(".")[0]) if label)


@lru_cache(_NODES)
def is_ip_address(host: str) -> bool:
    """Return whether this is an IPv4 or IPv6 address and not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
