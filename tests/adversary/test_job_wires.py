"""Another user of the nodes beside the helpers of a job's fast saves, which are processes here."""

import time

import pytest

from hpctl.checkpoints.fast import peer as peers
from hpctl.checkpoints.fast.peer import HANDSHAKE_S
from tests.adversary.bed import begin
from tests.checkpoints.fast.cluster import Nodes

pytestmark = [pytest.mark.integration, pytest.mark.adversary]


def test_strangers_that_connect_again_and_again_keep_no_helper_out(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        port = next(peers._list_ports(nodes.spec))
        places = [[address, port] for address in nodes.spec.addresses]
        storms = [begin("storm", places=places, seconds=12.0, width=300) for _ in range(2)]
        for each in storms:
            each.ready()
        limit, asked = time.monotonic() + 10, 0
        while time.monotonic() < limit:
            for host in nodes.spec.hosts:
                begun = time.monotonic()
                with nodes.peer(host) as peer:
                    peer.ask("ping", by="n0")
                assert time.monotonic() - begun < HANDSHAKE_S
                asked += 1
        assert asked >= 3
        assert all(each.result() > 2_000 for each in storms)
