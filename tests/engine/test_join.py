"""Which instance stands for which Slurm node, whatever either is called."""

import socket
import time
from datetime import datetime, timedelta

import pytest

from hpctl.engine import instance_resolver
from hpctl.toolkit import addresses as toolkit_addresses
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance, InstanceStatus
from hpctl.vocabulary.instance_join import InstanceNodeMapping, map_instances_to_nodes
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmNode

T0 = datetime(2026, 1, 1, tzinfo=UTC)
OLD, NEW = "i-old", "i-new"
DOMAIN = ".us-west-2.compute.internal"


def one(key, address="", dns="", status=InstanceStatus.RUNNING, launched=None):
    guess = dns.partition(".")[0] or (f"ip-{address.replace('.', '-')}" if address else "")
    node = guess if guess else None
    return Instance(key, status, "w", node, launched=launched, address=address, dns=dns)


def joined(*instances, resolved=None, **nodes):
    """Nodes as keywords: `gpu_1="10.1.0.3"` is gpu-1 with that NodeAddr."""
    addresses = {name.replace("_", "-"): addr for name, addr in nodes.items()}
    view = CloudProviderView(T0, instances={i.id: i for i in instances})
    return map_instances_to_nodes(view, addresses, resolved or {})


def ids(found: InstanceNodeMapping) -> dict[str, str]:
    return {str(name): str(i.id) for name, i in found.instances.items()}


@pytest.mark.parametrize(
    ("node_addr", "address", "dns"),
    [
        ("10.1.0.3", "10.1.0.3", ""),
        ("10.1.0.3", "10.1.0.3", "i-0123" + DOMAIN),
        ("ip-10-1-0-3", "10.1.0.3", ""),
        ("ip-10-1-0-3" + DOMAIN, "10.1.0.3", "ip-10-1-0-3" + DOMAIN),
        ("node-a" + DOMAIN, "", "node-a" + DOMAIN),
        ("NODE-A", "10.1.0.3", "node-a" + DOMAIN),
        ("gpu-1", "", "gpu-1" + DOMAIN),
    ],
)
def test_the_node_addr_decides(node_addr, address, dns):
    found = joined(one("i-1", address, dns), gpu_1=node_addr, gpu_2="10.1.0.4")
    assert (ids(found), found.instances["gpu-1"].node) == ({"gpu-1": "i-1"}, "gpu-1")


def test_a_node_addr_that_must_be_resolved_is_asked_for_and_then_decides():
    here = one("i-1", "10.1.0.3")
    before = joined(here, gpu_1="gpu-1")
    assert ids(before) == {"ip-10-1-0-3": "i-1"}, "a guess, until somebody knows"
    assert before.unknown == {"gpu-1"}
    after = joined(here, resolved={"gpu-1": "10.1.0.3"}, gpu_1="gpu-1")
    assert (ids(after), after.unknown) == ({"gpu-1": "i-1"}, frozenset())


def test_no_name_joins_what_the_addresses_keep_apart():
    """A node that kept its name at a new address, and the machine that has its old address now."""
    moved, stranger = one("i-mine", "10.1.0.9"), one("i-stranger", "10.1.0.3")
    for address in ("10.1.0.9", "ip-10-1-0-9" + DOMAIN):
        found = joined(stranger, moved, ip_10_1_0_3=address)
        assert ids(found) == {"ip-10-1-0-3": "i-mine"}
    found = joined(stranger, ip_10_1_0_3="10.1.0.9")
    assert ids(found) == {}
    assert (
        found.of(CloudProviderView(T0, instances={stranger.id: stranger}))
        .instances[stranger.id]
        .node
        is None
    )


def test_a_lingering_instance_yields_to_its_successor_in_any_order():
    old = one(OLD, "10.1.0.3", status=InstanceStatus.SHUTTING_DOWN)
    for status in (InstanceStatus.PENDING, InstanceStatus.RUNNING, InstanceStatus.FAILURE):
        new = one(NEW, "10.1.0.3", status=status)
        for pair in ((old, new), (new, old)):
            found = joined(*pair, gpu_1="10.1.0.3")
            assert (ids(found), found.unjoined) == ({"gpu-1": NEW}, {})
            view = found.of(CloudProviderView(T0, instances={i.id: i for i in pair}))
            assert {i.id: i.node for i in view.instances.values()} == {OLD: None, NEW: "gpu-1"}
    assert ids(joined(old, gpu_1="10.1.0.3")) == {"gpu-1": OLD}
    moved = one(OLD, "10.1.0.3", status=InstanceStatus.DETACHING)
    here = one(NEW, "10.1.0.3", status=InstanceStatus.RUNNING)
    assert ids(joined(moved, here, gpu_1="10.1.0.3")) == {"gpu-1": NEW}


def test_join_picks_the_newest_of_several_leaving_instances():
    going = InstanceStatus.SHUTTING_DOWN
    first, second = (
        one(key, "10.1.0.3", status=going, launched=T0 + timedelta(hours=hour))
        for key, hour in (("i-b", 0), ("i-a", 1))
    )
    assert ids(joined(second, first, gpu_1="10.1.0.3")) == {"gpu-1": "i-a"}
    assert ids(joined(one("i-c", "10.1.0.3", status=going), first, gpu_1="10.1.0.3")) == {}


def test_two_that_live_at_one_address_are_joined_to_nothing_and_say_so():
    found = joined(one("i-1", "10.1.0.3"), one("i-2", "10.1.0.3"), gpu_1="10.1.0.3")
    assert ids(found) == {}
    assert "i-1, i-2" in found.unjoined["gpu-1"]
    assert "gpu-1" in found.unjoined["i-2"]


def test_join_resolves_a_shared_address_only_by_name():
    here = one("i-1", "10.1.0.3", "gpu-2" + DOMAIN)
    assert ids(joined(here, gpu_1="10.1.0.3", gpu_2="10.1.0.3")) == {"gpu-2": "i-1"}
    found = joined(one("i-1", "10.1.0.3"), gpu_1="10.1.0.3", gpu_2="10.1.0.3")
    assert ids(found) == {}
    assert "2 Slurm nodes" in found.unjoined["i-1"]


def test_join_prefers_the_node_addr_to_the_node_name():
    by_addr, by_name = one("i-addr", dns="a" + DOMAIN), one("i-name", dns="gpu-1" + DOMAIN)
    assert ids(joined(by_name, by_addr, gpu_1="a")) == {"gpu-1": "i-addr"}


def test_join_keeps_its_guess_until_slurm_is_read():
    assert ids(joined(one("i-1", "10.1.0.3"))) == {"ip-10-1-0-3": "i-1"}


class Resolver:
    """getaddrinfo with answers of a test's own."""

    def __init__(self) -> None:
        self.answers: dict[str, str] = {}
        self.asked: list[str] = []

    def __call__(self, host, *_):
        self.asked.append(host)
        if host not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, 1, 6, "", (self.answers[host], 0))]


@pytest.fixture
def resolver(monkeypatch) -> Resolver:
    made = Resolver()
    monkeypatch.setattr(toolkit_addresses.socket, "getaddrinfo", made)
    return made


def test_the_resolver_is_asked_once_a_minute_and_forgets(resolver, monkeypatch):
    node = SlurmNode("gpu-1", "IDLE", address="gpu-1")
    slurm = SchedulerView(T0, {node.name: node})
    cloud = CloudProviderView(T0, instances={OLD: one(OLD, "10.1.0.3")})
    joiner = instance_resolver.InstanceToNodeMatcher()
    joiner.join(cloud, slurm)
    assert not joiner.resolve(), "nobody knows it yet"
    resolver.answers["gpu-1"] = "10.1.0.3"
    assert not joiner.resolve(), "asked a moment ago"
    clock = time.monotonic() + 61
    monkeypatch.setattr(instance_resolver.time, "monotonic", lambda: clock)
    assert joiner.resolve()
    view, found = joiner.join(cloud, slurm)
    assert (ids(found), view.instances[OLD].node) == ({"gpu-1": OLD}, "gpu-1")
    assert joiner.join(cloud, slurm)[1] is found, "nothing changed: nothing is joined again"
    assert resolver.asked == ["gpu-1"] * 2
    clock += 61
    resolver.answers.clear()
    assert joiner.resolve()
    assert ids(joiner.join(cloud, slurm)[1]) == {"ip-10-1-0-3": OLD}


def test_who_looks_once_asks_the_resolver_where_that_is_needed(resolver):
    resolver.answers["gpu-1"] = "10.1.0.3"
    nodes = {
        name: SlurmNode(name, "IDLE", address=address)
        for name, address in (
            ("gpu-1", "gpu-1"),
            ("gpu-2", "10.1.0.4"),
            ("ip-10-1-0-5", "ip-10-1-0-5"),
        )
    }
    cloud = CloudProviderView(T0, instances={OLD: one(OLD, "10.1.0.3"), NEW: one(NEW, "10.1.0.5")})
    _, found = instance_resolver.match_instances_to_nodes_once(cloud, SchedulerView(T0, nodes))
    assert (ids(found), resolver.asked) == ({"gpu-1": OLD, "ip-10-1-0-5": NEW}, ["gpu-1"])
