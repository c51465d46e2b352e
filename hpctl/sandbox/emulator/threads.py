"""The worker threads of the emulated service, which end together."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hpctl.sandbox.emulator.state import World


@dataclass(slots=True)
class Threads:
    """Whoever waits in one looks at `stopping`, or is woken by the world's condition."""

    world: World
    stopping: threading.Event = field(default_factory=threading.Event)
    _running: list[threading.Thread] = field(default_factory=list)

    def spawn(self, work: Callable[[], object], name: str) -> None:
        """Run `work` in a thread of its own, which `stop` waits for."""
        thread = threading.Thread(target=work, name=f"emulator-{name}", daemon=True)
        with self.world.lock:
            self._running = [t for t in self._running if t.is_alive()]
            self._running.append(thread)
        thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Have every thread end where it stands, and wait for them."""
        self.stopping.set()
        with self.world.changed:
            threads = list(self._running)
            self.world.changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
