"""The deletion of old archives, on a thread: a shared directory may hang, and so may S3."""

import logging
import threading
from pathlib import Path
from typing import Final

from hpctl.engine.live_config import LiveConfig
from hpctl.nodes.evidence.bucket import open_evidence_bucket
from hpctl.nodes.evidence.store import choose_expired_files, delete_archives, list_archives
from hpctl.vocabulary.evidence import is_s3_location
from hpctl.vocabulary.isolation import ItemProcessingFailure, call_and_capture_failure
from hpctl.vocabulary.policy import EvidenceCollectionPolicy
from hpctl.vocabulary.ports import Clock

log = logging.getLogger(__name__)

EVERY_S: Final = 600.0


class EvidenceRetention:
    """Deletes what `evidence.keep_days` and `evidence.keep_gb` no longer keep."""

    def __init__(self, live: LiveConfig, clock: Clock) -> None:
        self._live, self._clock = live, clock
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run_retention_loop, name="evidence", daemon=True
        )
        self._trouble = ""

    def start(self) -> None:
        """Begin. A leader that has just started looks after EVERY_S."""
        self._thread.start()

    def stop(self) -> None:
        """End it; a look that hangs is left behind."""
        self._stop.set()

    def _run_retention_loop(self) -> None:
        while not self._stop.wait(EVERY_S):
            found = call_and_capture_failure("evidence", "retention", lambda _: self.look(), None)
            if isinstance(found, ItemProcessingFailure):
                log.error("flaw=%s", found)

    def look(self) -> None:
        """Delete what is due. A place that cannot be read is logged once."""
        policy = self._live.policy.evidence
        if not policy.directory:
            return
        try:
            deleted = self._delete_expired_archives(policy)
        except OSError as error:
            trouble = f"{policy.directory}: {error.strerror or error}"
            if trouble != self._trouble:
                log.warning("old evidence cannot be deleted: %s", trouble)
            self._trouble = trouble
            return
        self._trouble = ""
        if deleted:
            log.info("evidence_deleted=%d", deleted)

    def _delete_expired_archives(self, policy: EvidenceCollectionPolicy) -> int:
        """Delete what is due; return how many. Raises OSError."""
        now = self._clock.now().timestamp()
        keep_s, keep_bytes = policy.keep_days * 86400.0, policy.keep_gb * 1e9
        if is_s3_location(policy.directory):
            cluster = self._live.config.cluster
            bucket = open_evidence_bucket(
                policy.directory, profile=cluster.profile, region=cluster.region
            )
            expired = choose_expired_files(bucket.list_archive_files(), now, keep_s, keep_bytes)
            return bucket.delete_archive_files(expired)
        directory = Path(policy.directory)
        expired = choose_expired_files(list_archives(directory), now, keep_s, keep_bytes)
        return delete_archives(directory, expired)
