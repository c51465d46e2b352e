"""What one node, or one job, says of another node destroys nothing."""

import pytest

from hpctl.faults.catalogue import build_fault_rules
from hpctl.insight.grey.decide import SIGNALS

pytestmark = [pytest.mark.integration, pytest.mark.adversary]


def test_what_peers_say_of_a_node_is_only_watched() -> None:
    known = build_fault_rules()
    rows = {f"peer-{signal.name}" for signal in SIGNALS}
    assert rows <= set(known.classes)
    assert rows <= known.watched
