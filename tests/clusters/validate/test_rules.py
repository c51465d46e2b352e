"""What security group rules let through, on EC2's own shapes."""

import pytest

from hpctl.clusters.validate.network import (
    SecurityGroupRulePeers,
    are_ports_open_to_peers,
    has_rule_allowing_all_traffic,
)
from tests.tables import beside

pytestmark = pytest.mark.integration

NODES = SecurityGroupRulePeers({"sg-nodes"}, ("10.1.0.0/20", "10.1.16.0/20"))
RULES = beside(__file__, "rules.yaml")


@pytest.mark.parametrize("case", RULES["all traffic"])
def test_all_traffic(case) -> None:
    assert has_rule_allowing_all_traffic(case["rules"], NODES) is ("ip" in case["by"])
    assert has_rule_allowing_all_traffic(case["rules"], NODES, by_group=True) is (
        "group" in case["by"]
    )


@pytest.mark.parametrize("case", RULES["ports"])
def test_ports(case) -> None:
    assert are_ports_open_to_peers(case["rules"], "tcp", range(1018, 1024), NODES) is case["open"]


def test_ipv6_nodes_are_let_in_by_ipv6_blocks() -> None:
    six = SecurityGroupRulePeers({"sg-nodes"}, ("2600:1f14::/64",))
    blocks = {"IpProtocol": "-1", "Ipv6Ranges": [{"CidrIpv6": "2600:1f14::/56"}]}
    assert has_rule_allowing_all_traffic([blocks], six)
    assert not has_rule_allowing_all_traffic(
        [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}], six
    )
