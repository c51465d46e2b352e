"""The system's clock."""

import time
from datetime import datetime

from hpctl.toolkit.compat import UTC


class SystemClock:
    """The machine's wall clock and its monotonic one."""

    def now(self) -> datetime:
        """Return the wall clock, aware, UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()
