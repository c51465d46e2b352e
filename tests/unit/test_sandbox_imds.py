"""A spot instance's metadata service in the sandbox, as the agent's check asks it."""

from __future__ import annotations

import socket
from datetime import datetime

import pytest

from hpctl.agent.check import Expected, Machine
from hpctl.agent.checks import check_host_ec2
from hpctl.core.compat import UTC
from hpctl.sandbox.imds import Imds


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.1.1", 0))
        return int(probe.getsockname()[1])


def test_the_agents_check_hears_the_notice_of_its_own_instance(port: int) -> None:
    imds = Imds(port)
    machines = {}
    for address in ("127.0.1.1", "127.0.1.2"):
        imds.serve(address)
        expected = Expected(spot=True, metadata_url=imds.url(address))
        machines[address] = Machine(expected=expected)
    imds.give_notice("127.0.1.2", datetime(2026, 1, 1, tzinfo=UTC))
    assert check_host_ec2.gather_spot(machines["127.0.1.1"]).action == ""
    heard = check_host_ec2.gather_spot(machines["127.0.1.2"])
    assert (heard.action, heard.at) == ("terminate", "2026-01-01T00:00:00Z")
    imds.serve("127.0.1.2")
    assert check_host_ec2.gather_spot(machines["127.0.1.2"]).action == "", "a new instance has none"
