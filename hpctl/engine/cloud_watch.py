"""Read the cloud on a separate thread, as often as the loop asks for it."""

import logging
import math
import threading
import time
from collections.abc import Callable, Set

from hpctl.engine.instance_resolver import NEVER as LONG_AGO
from hpctl.engine.instance_resolver import InstanceToNodeMatcher
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.ports import CloudProvider

log = logging.getLogger(__name__)


AGAIN_S = 5.0
"""How soon a read of the cloud that failed is tried again: a cluster that was not there yet, or an
endpoint that was away, is back at any moment, and until then nothing is decided.
"""


FRESH_S = 1.0
"""A reading of the cloud that is younger is not repeated for what it blocks."""


class CloudPoller:
    """Reads the provider in the background, as often as the loop asks for."""

    def __init__(
        self, provider: CloudProvider, poke: Callable[[], None], interval_s: float
    ) -> None:
        """Nothing is read before `start`."""
        self._provider = provider
        self._poke = poke
        self.interval_s = interval_s
        self.view = CloudProviderView(as_of=LONG_AGO, present=True)
        self.trouble = ""
        self.resolver = InstanceToNodeMatcher()
        self._hurry = threading.Event()
        self._blocked: Set[object] = frozenset()
        self._read_at = -math.inf
        self._stop = False
        self._thread = threading.Thread(
            target=self._poll_until_stopped, name="cloud-watch", daemon=True
        )

    def start(self) -> None:
        """Begin reading."""
        self._thread.start()

    def look(self, interval_s: float, blocked: Set[object] = frozenset()) -> None:
        """From now on read at this interval; a shorter one than before takes effect at once.

        `blocked`: what the last reading keeps from being done. Where that is new and the reading
        is not, the cloud is read at once: the reading may only be old.
        """
        old = time.monotonic() - self._read_at > FRESH_S
        if interval_s < self.interval_s or (old and not blocked <= self._blocked):
            self._hurry.set()
        self.interval_s, self._blocked = interval_s, blocked

    def stop(self) -> None:
        """Stop reading; a read under way is abandoned."""
        self._stop = True
        self._hurry.set()

    def _poll_until_stopped(self) -> None:
        while not self._stop:
            self.read()
            self._hurry.wait(min(self.interval_s, AGAIN_S) if self.trouble else self.interval_s)
            self._hurry.clear()

    def read(self) -> None:
        """Read once; on failure the old view stands, with its old time."""
        self._read_at = time.monotonic()
        try:
            view = self._provider.view()
        except ServiceUnavailable as error:
            self.trouble = str(error)
            return
        # Were this thread to end, every recovery would wait for it until a person is called.
        except Exception as error:
            log.exception("the cloud could not be read")
            self.trouble = f"the cloud could not be read: {type(error).__name__}: {error}"
            return
        changed = self.resolver.resolve()
        changed |= view.instances != self.view.instances or bool(self.trouble)
        self.view, self.trouble = view, ""
        if changed:
            self._poke()
