"""The site's own scripts: `site.d/NAME.sh`, or `NAME.ROLE.sh` for one role, in order of name.

Each runs until it has ended with 0 once on this instance, and must stand being run again.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from lifecycle.failure import Failure, No
from lifecycle.node import Node
from lifecycle.state import DIRECTORY


def _scripts(node: Node) -> list[Path]:
    found = sorted((node.bundle / "site.d").glob("*.sh"))
    return [p for p in found if Path(p.stem).suffix in ("", "." + node.role)]


def applies(node: Node) -> Any:
    """Return whether the bundle brings any."""
    return bool(_scripts(node)) or No("no site.d in this bundle")


def _mark(node: Node, script: Path) -> Path:
    digest = hashlib.sha256(script.read_bytes()).hexdigest()[:16]
    return node.machine.path(DIRECTORY) / "site" / f"{script.stem}-{digest}"


def done(node: Node) -> bool:
    """Return whether each has ended well, as it is now."""
    return all(_mark(node, script).exists() for script in _scripts(node))


def run(node: Node) -> None:
    """Those that have not ended well yet. The first that fails ends the step."""
    env = {
        "HPCTL_ROLE": node.role,
        "HPCTL_NODE": node.name,
        "HPCTL_CLUSTER": node.cluster,
        "HPCTL_CONTROLLERS": ",".join(node.controllers),
        "HPCTL_ROOT": str(node.machine.root),
    }
    for script in _scripts(node):
        mark = _mark(node, script)
        if mark.exists():
            continue
        first = script.read_text().splitlines()[:1]
        shell = "bash" if first and "bash" in first[0] else "sh"
        try:
            output = node.machine.run(shell, str(script), env=env, timeout=800)
        except Failure as failure:
            raise Failure(f"site.d/{script.name}: {failure}") from failure
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
        print("site.d/{}: {}".format(script.name, output.strip()[-1500:] or "done"))
