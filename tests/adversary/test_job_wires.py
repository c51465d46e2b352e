"""Another user of the nodes beside the helpers of a job's fast saves, which are processes here."""

import time

import pytest

from hpctl.checkpoints.fast import peer as peers
from tests.adversary.bed import begin
from tests.checkpoints.fast.cluster import Nodes

pytestmark = [pytest.mark.integration, pytest.mark.adversary]


def test_strangers_that_connect_again_and_again_keep_no_helper_out(tmp_path):
    with Nodes(tmp_path, 3) as nodes:
        nodes.resume()
        port = next(peers.list_helper_ports(nodes.spec))
        places = [[address, port] for address in nodes.spec.addresses]
        storms = [begin("storm", places=places, seconds=20.0, width=300) for _ in range(2)]
        for each in storms:
            each.ready()
        limit, waiting = time.monotonic() + 18, 2 * list(nodes.spec.hosts)
        while waiting and time.monotonic() < limit:
            try:
                with nodes.peer(waiting[0]) as peer:
                    peer.ask("ping", by="n0")
            except peers.PeerError:
                continue  # two processors may be too busy for one handshake; helpers repeat it, too
            waiting.pop(0)
        assert not waiting
        assert all(each.result() > 2_000 for each in storms)
