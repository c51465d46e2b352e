"""The daemon's configuration as a command reads it."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpctl.engine.config import Config


def load_config(path: str) -> Config:
    """Read the configuration. Raises ConfigError, which names the place and the fix."""
    # A command that reads ends soon, and neither modules nor the records of ten thousand nodes are
    # garbage: an eighth of its time would go into looking for some.
    gc.disable()
    from hpctl.engine.config import read_config_file

    return read_config_file(path)
