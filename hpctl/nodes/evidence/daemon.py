"""The deletion of old archives, on a thread: a shared directory may hang."""

import logging
import threading
from pathlib import Path
from typing import Final

from hpctl.engine.live_config import LiveConfig
from hpctl.nodes.evidence.store import choose_expired, delete_files, list_files
from hpctl.vocabulary.ports import Clock

log = logging.getLogger(__name__)

EVERY_S: Final = 600.0


class EvidenceRetention:
    """Deletes what `evidence.keep_days` and `evidence.keep_gb` no longer keep."""

    def __init__(self, live: LiveConfig, clock: Clock) -> None:
        self._live, self._clock = live, clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evidence", daemon=True)
        self._trouble = ""

    def start(self) -> None:
        """Begin. A leader that has just started looks after EVERY_S."""
        self._thread.start()

    def stop(self) -> None:
        """End it; a look that hangs is left behind."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(EVERY_S):
            self.look()

    def look(self) -> None:
        """Delete what is due. A directory that cannot be read is logged once."""
        policy = self._live.policy.evidence
        if not policy.directory:
            return
        directory, now = Path(policy.directory), self._clock.now().timestamp()
        try:
            expired = choose_expired(
                list_files(directory), now, policy.keep_days * 86400.0, policy.keep_gb * 1e9
            )
            deleted = delete_files(directory, expired)
        except OSError as error:
            trouble = f"{directory}: {error.strerror}"
            if trouble != self._trouble:
                log.warning("old evidence cannot be deleted: %s", trouble)
            self._trouble = trouble
            return
        self._trouble = ""
        if deleted:
            log.info("evidence_deleted=%d", deleted)
