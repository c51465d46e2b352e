"""Tables in YAML beside the tests, read by libyaml: every process of a run reads all of them."""

from pathlib import Path
from typing import Any

import yaml

Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def table(path: Path) -> Any:
    """What the file holds."""
    return yaml.load(path.read_text(), Loader)


def beside(module: str, name: str = "") -> Any:
    """The table of that name in a module's directory, or of the module's own name."""
    path = Path(module)
    return table(path.with_name(name) if name else path.with_suffix(".yaml"))
