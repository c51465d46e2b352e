"""What becomes of a node when a check cannot tell."""

import pytest

from hpctl.core.model import Condition
from tests.unit.test_assess import judge, unknown, xid


@pytest.mark.parametrize("check", ["kernel.log", "gpu.ecc", "efa.devices"])
def test_who_cannot_judge_log_or_devices_vouches_for_nothing(check):
    found = judge(unknown(check))
    assert (found.condition, found.fault) == (Condition.UNKNOWN, None)
    assert check in found.why
    assert judge(unknown(check), xid(13)).condition is Condition.UNKNOWN
    assert judge(unknown(check), xid(79)).condition is Condition.FAULTY


def test_a_partly_blind_node_is_judged_by_what_it_sees():
    found = judge(unknown("host.dstate"))
    assert found.condition is Condition.HEALTHY
    assert [f.check for f in found.findings] == ["host.dstate"]
    assert judge(unknown("host.dstate"), xid(79)).condition is Condition.FAULTY
