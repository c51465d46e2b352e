"""What keeps a recovery in a phase, and how a story waits for that phase."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from hpctl.vocabulary.job_recovery import JobRecoveryPhase
from hpctl.vocabulary.node_recovery import NodeRecoveryPhase
from tests.daemon.chaos import Chaos

AFTER_JOBS: Final = 63
"""An Xid after which the jobs of the node may go on."""
CONFIG: Final = {
    "catalogue": {"xid-79": {"ladder": ["replace"]}, "xid-63": {"ladder": ["replace"]}}
}
REBOOT: Final = "BatchRebootClusterNodes"
REBOOTED: Final[dict[str, Any]] = {"catalogue": {"xid-79": {"ladder": ["reboot"]}}}
"""Has a recovery that opens reboot the instance in place of replacing it."""


@dataclass(frozen=True)
class Held:
    """Keys of the configuration, or a fault of the cloud, that keep a recovery in a phase."""

    config: dict[str, Any] = field(default_factory=dict)
    api: str = ""

    def begin(self, live: Chaos) -> None:
        """Keep the recoveries that open from now on in the phase."""
        live.reconfigure(**self.config)
        if self.api:
            live.sandbox.inject_api(self.api)

    def end(self, live: Chaos) -> None:
        """Let them go on."""
        if self.api:
            live.sandbox.inject_api("clear")
        live.reconfigure()


PASSING: Final = Held()
"""A phase that passes by itself: a story meets it, or the one after it."""
REMEDY_LATE: Final = Held({"node": {"remedy_after_s": 600.0}})
REPLACE_STUCK: Final = Held(api="stuck-replace")
HEALTHY_LATE: Final = Held({"node": {"verify_healthy_s": 600.0}})
PROVED_LATE: Final = Held({"job": {"prove_s": 600.0}})
REBOOT_LATE: Final = Held({**REBOOTED, "node": {"remedy_after_s": 600.0}})
REBOOTING: Final = Held(REBOOTED)
REBOOTED_HEALTHY_LATE: Final = Held({**REBOOTED, "node": {"verify_healthy_s": 600.0}})


def await_phase(
    read: Callable[[], str], phase: str, phases: type[NodeRecoveryPhase | JobRecoveryPhase]
) -> None:
    """Return as soon as a recovery is in a phase, or beyond it."""
    order = [str(each) for each in phases]
    awaited = order[order.index(phase) :]
    limit = time.monotonic() + 60
    while read() not in awaited:
        assert time.monotonic() < limit, f"its recovery is {read()!r}, not {phase}"
