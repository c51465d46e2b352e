"""What security group rules let through, on EC2's own shapes."""

from typing import Any

import pytest

from hpctl.clusters.validate import security_groups
from hpctl.clusters.validate.security_groups import Peers

NODES = Peers({"sg-nodes"}, ("10.1.0.0/20", "10.1.16.0/20"))
SELF = [{"GroupId": "sg-nodes"}]
OTHER = [{"GroupId": "sg-other"}]


def rule(protocol: str = "-1", **more: Any) -> dict[str, Any]:
    return {"IpProtocol": protocol, **more}


def blocks(*cidrs: str) -> list[dict[str, str]]:
    return [{"CidrIp": cidr} for cidr in cidrs]


@pytest.mark.parametrize(
    ("permissions", "by_ip", "by_group"),
    [
        ([rule(UserIdGroupPairs=SELF)], True, True),
        ([rule(UserIdGroupPairs=OTHER)], False, False),
        ([rule(IpRanges=blocks("0.0.0.0/0"))], True, False),
        ([rule(IpRanges=blocks("10.1.0.0/16"))], True, False),
        ([rule(IpRanges=blocks("10.1.0.0/20"))], False, False),
        ([rule(IpRanges=blocks("10.1.0.0/20", "10.1.16.0/20"))], True, False),
        ([rule(Ipv6Ranges=[{"CidrIpv6": "::/0"}])], False, False),
        ([rule("tcp", FromPort=0, ToPort=65535, UserIdGroupPairs=SELF)], False, False),
        ([rule(PrefixListIds=[{"PrefixListId": "pl-1"}])], False, False),
        ([rule()], False, False),
        ([], False, False),
    ],
)
def test_all_traffic(permissions: list[Any], by_ip: bool, by_group: bool) -> None:
    assert security_groups.everything(permissions, NODES) is by_ip
    assert security_groups.everything(permissions, NODES, by_group=True) is by_group


@pytest.mark.parametrize(
    ("permissions", "open_"),
    [
        ([rule(UserIdGroupPairs=SELF)], True),
        ([rule("tcp", FromPort=1018, ToPort=1023, UserIdGroupPairs=SELF)], True),
        ([rule("tcp", FromPort=1018, ToPort=1022, UserIdGroupPairs=SELF)], False),
        ([rule("udp", FromPort=1018, ToPort=1023, UserIdGroupPairs=SELF)], False),
        ([rule("tcp", UserIdGroupPairs=SELF)], True),
        (
            [
                rule("tcp", FromPort=1021, ToPort=2000, UserIdGroupPairs=SELF),
                rule("tcp", FromPort=0, ToPort=1020, IpRanges=blocks("10.0.0.0/8")),
            ],
            True,
        ),
        (
            [
                rule("tcp", FromPort=1022, ToPort=2000, UserIdGroupPairs=SELF),
                rule("tcp", FromPort=0, ToPort=1020, UserIdGroupPairs=SELF),
            ],
            False,
        ),
    ],
)
def test_ports(permissions: list[Any], open_: bool) -> None:
    assert security_groups.ports(permissions, "tcp", range(1018, 1024), NODES) is open_


def test_ipv6_nodes_are_let_in_by_ipv6_blocks() -> None:
    six = Peers({"sg-nodes"}, ("2600:1f14::/64",))
    assert security_groups.everything([rule(Ipv6Ranges=[{"CidrIpv6": "2600:1f14::/56"}])], six)
    assert not security_groups.everything([rule(IpRanges=blocks("0.0.0.0/0"))], six)
