"""How often the cloud is read: often while something waits for it."""

from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.gates import OF_CLOUD
from hpctl.engine.journal.state import EngineState
from hpctl.engine.live_config import LiveConfig


class CloudPollIntervalController:
    """Sets the interval of the cloud's readings after each cycle."""

    def __init__(self, live: LiveConfig, cloud: CloudPoller) -> None:
        """Nothing is set before `follow`."""
        self._live, self._cloud = live, cloud

    def follow(self, state: EngineState) -> None:
        """Read often while recoveries or changes are open, or while the last reading blocks one;
        where that is new, the cloud is read at once."""
        cluster = self._live.config.cluster
        holds = state.holds.values()
        blocked = {(hold.target, hold.gate) for hold in holds if hold.gate in OF_CLOUD}
        busy = state.open_nodes or state.open_changes or blocked
        self._cloud.look(cluster.busy_poll_s if busy else cluster.poll_s, blocked)
