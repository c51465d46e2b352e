"""How often the cloud is read after a cycle."""

from datetime import datetime
from typing import Any

import pytest

from hpctl.daemon.cloud_pace import CloudPollIntervalController
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.config import Config
from hpctl.engine.journal.events import GateBlocked, HoldLifted
from hpctl.engine.journal.state import EngineState
from hpctl.engine.live_config import LiveConfig
from hpctl.sagemaker.no_provider import NoProvider
from hpctl.toolkit.compat import UTC

NOW = datetime(2026, 3, 1, tzinfo=UTC)


class Readings:
    """A cloud that counts how often it was read."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, bool]] = []

    def look(self, interval_s: float, blocked: set[tuple[str, str]]) -> None:
        self.looks.append((interval_s, bool(blocked)))


@pytest.mark.parametrize(("gate", "busy"), [("provider_acts", True), ("budget", False)])
def test_what_the_clouds_last_reading_holds_has_it_read_again(gate, busy):
    live, state, readings = LiveConfig(Config()), EngineState(), Readings()
    cloud: Any = readings
    pace = CloudPollIntervalController(live, cloud)
    state.fold(GateBlocked(NOW, "n1", gate, "the service calls i-1 Pending", "xid-79", False))
    pace.follow(state)
    cluster = live.config.cluster
    assert readings.looks == [(cluster.busy_poll_s if busy else cluster.poll_s, busy)]
    state.fold(HoldLifted(NOW, "n1"))
    pace.follow(state)
    assert readings.looks[1:] == [(cluster.poll_s, False)]


def test_the_interval_is_the_one_of_the_configuration_in_force():
    cloud, live = CloudPoller(NoProvider(), lambda: None, 3600), LiveConfig(Config())
    CloudPollIntervalController(live, cloud).follow(EngineState())
    assert cloud.interval_s == live.config.cluster.poll_s
