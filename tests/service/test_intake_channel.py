"""What the intake's process hands to the daemon."""

import json

import msgspec
import pytest

from hpctl.service.intake import channel
from hpctl.wire import reports as wire


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_a_heartbeat_of_no_clock_can_be_handed_on(at):
    beat = {"node": "n1", "instance": "i-1", "boot": "b", "seq": 1, "sent_at": at}
    beat |= {"agent_start": at, "digest": wire.compute_findings_digest(())}
    read = wire.decode_agent_message(
        json.dumps({"v": wire.VERSION, "heartbeat": beat}).encode()
    ).content
    assert channel.Beats((read,)) == msgspec.msgpack.decode(
        msgspec.msgpack.encode(channel.Beats((read,))), type=channel.Beats
    )
