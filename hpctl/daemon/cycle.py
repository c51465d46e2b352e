"""One round of the loop, with what comes before and after it. Here the loop's errors end."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hpctl.daemon.configuration_audit import ConfigurationChangeRecorder
from hpctl.daemon.follow_up import CycleResultPublisher
from hpctl.daemon.health import DaemonHousekeeping
from hpctl.daemon.journal_guard import RETRY_S, JournalAvailabilityGuard
from hpctl.daemon.pause import CycleSleeper
from hpctl.daemon.readiness import ReadinessNotifier
from hpctl.daemon.reload import ConfigReload
from hpctl.daemon.signals import DaemonSignalHandler
from hpctl.engine.journal.state import InconsistentEventError
from hpctl.engine.journal.store import LeaseLostError
from hpctl.engine.leadership import Leadership
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import NextLoopCycleTime, RecoveryLoop
from hpctl.engine.wake import DaemonLoopWaker
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.errors import CorruptJournalError, ServiceUnavailable

log = logging.getLogger("hpctl.daemon")


class CycleFailureTracker:
    """Counts the cycles that failed as a whole, in a row."""

    def __init__(self, on_failure: Sequence[Callable[[], object]] = ()) -> None:
        """No cycle has failed yet. Each of `on_failure` is called for each that does."""
        self._on_failure = on_failure
        self._in_a_row = 0
        self.trouble = ""
        """How the last cycle failed; empty where it did not."""

    def note(self, error: Exception) -> float:
        """Count and log one more, and return the seconds to wait: more each time."""
        for notify in self._on_failure:
            notify()
        self._in_a_row += 1
        log.error("a cycle failed, %d in a row; it is tried again", self._in_a_row, exc_info=error)
        self.trouble = make_printable(f"a cycle failed: {type(error).__name__}: {error}")[:200]
        return RETRY_S * self._in_a_row

    def clear(self) -> None:
        """A cycle went well."""
        self._in_a_row, self.trouble = 0, ""


@dataclass(kw_only=True, eq=False)
class DaemonCycle:
    """Reload, look, decide and act, report, sleep."""

    live: LiveConfig
    loop: RecoveryLoop
    leadership: Leadership
    signals: DaemonSignalHandler
    reload: ConfigReload
    readiness: ReadinessNotifier
    audit: ConfigurationChangeRecorder
    journal: JournalAvailabilityGuard
    failures: CycleFailureTracker
    housekeeping: DaemonHousekeeping
    follow_up: CycleResultPublisher
    pause: CycleSleeper
    waker: DaemonLoopWaker
    _quiet: bool = False
    """Nothing has asked for the next cycle."""

    def run(self) -> None:
        """Once round. Raises LeaseLostError, CorruptJournalError, InconsistentEventError."""
        quiet, self._quiet = self._quiet, False
        if self.signals.consume_reload_request():
            self.reload.run()
            quiet = False
        self.readiness.send_watchdog_keepalive()
        self.leadership.progress()
        if not self.leadership.leads:
            away = ServiceUnavailable(
                "this daemon stopped acting: it could not reach the database of the journal, and "
                "its right to act as the only daemon expired",
                "check the database; the daemon continues when it answers",
            )
            self.journal.wait(away)
            return
        begun = time.monotonic()
        try:
            pace, spent_s = self._run_recovery_cycle(begun, quiet=quiet)
        except (LeaseLostError, CorruptJournalError, InconsistentEventError):
            raise
        except (OSError, ServiceUnavailable) as error:
            self.journal.wait(error)
            return
        # No isolation caught it: the next cycle begins from the facts again, and the daemon lives.
        except Exception as error:  # noqa: BLE001 -- it is logged, counted and shown as trouble
            self._recover_from_error(error, begun)
            return
        self.failures.clear()
        self.follow_up.report(self.loop, spent_s)
        if not self.leadership.hand_over_to:
            self._quiet = self.pause.rest(pace, spent_s)

    def _run_recovery_cycle(self, begun: float, *, quiet: bool) -> tuple[NextLoopCycleTime, float]:
        """Run the cycle; return how long it took, in seconds."""
        self.journal.replay_journal_if_stale()
        self.audit.write_configuration_if_requested()
        pace = self.loop.cycle(self.live.policy, self.live.rules, quiet=quiet)
        self.follow_up.publish_cluster_snapshot(self.loop)
        self.follow_up.announce_ready_after_slurm_read()
        spent_s = time.monotonic() - begun
        self.follow_up.log_inconsistencies(self.loop)
        self.housekeeping.run(spent_s)
        self.journal.create_disk_reserve()
        self.follow_up.forward_agent_orders()
        self.leadership.hand_over_to_active_controller_host()
        return pace, spent_s

    def _recover_from_error(self, error: Exception, begun: float) -> None:
        """After a cycle that failed as a whole: wait, and replay the journal."""
        wait_s = self.failures.note(error)
        try:
            self.housekeeping.run(time.monotonic() - begun)
            self.waker.wait(min(wait_s, self.live.config.flush_interval_s))
            self.journal.reread()
        except (OSError, ServiceUnavailable) as also:
            self.journal.wait(also)
