"""What became of each step: one small JSON file a step, whole or not there."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

DIRECTORY = "/var/lib/hpctl/lifecycle"

DONE = "done"
FAILED = "failed"
RUNNING = "running"
NOT_APPLICABLE = "not_applicable"
OFF = "off"


class States:
    """The state directory of one node."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def write(self, name: str, **what: Any) -> None:
        """Keep what is known of a step (or of the run: `run`)."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / (name + ".json")
        part = path.with_name(f"{path.name}.part")
        with part.open("w") as file:
            json.dump(what, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(str(part), str(path))

    def read(self, name: str) -> dict[str, Any]:
        """Return what is known of a step; nothing where it never ran, or its file is broken."""
        try:
            data = json.loads((self.directory / (name + ".json")).read_text())
        except (OSError, ValueError):
            return {}
        return data if isinstance(data, dict) else {}

    def all(self, names: list[str]) -> list[dict[str, Any]]:
        """Return what is known of each step that ran, in their order."""
        known = [self.read(name) for name in names]
        return [one for one in known if one]
