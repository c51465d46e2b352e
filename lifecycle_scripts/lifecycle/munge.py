"""The address in this node's MUNGE credentials, by which hpctl's daemon tells nodes apart.

munged looks its host up once, when it starts: before the network knows names it finds nothing, and
on a host with several addresses perhaps another one than Slurm's. Reports would be refused.
"""

from __future__ import annotations

import re
import shlex
import shutil

from lifecycle.failure import Failure
from lifecycle.node import Node
from lifecycle.slurm_files import set_line

UNIT = "munge.service"


def vouches(node: Node) -> bool:
    """Return whether credentials carry the node's address; true where no munged can be asked."""
    if not node.machine.running or not shutil.which("unmunge"):
        return True
    return _origin(node) == node.address


def _origin(node: Node) -> str:
    credential = node.machine.run("munge", "--no-input", timeout=30)
    output = node.machine.run("unmunge", given=credential, timeout=30)
    found = re.search(r"(?m)^ENCODE_HOST:.*?(\d+\.\d+\.\d+\.\d+)\)?$", output)
    return found[1] if found else ""


def restart(node: Node) -> None:
    """Start munged again, with --origin where what it finds itself is wrong. Raises Failure."""
    node.machine.start(UNIT, again=True)
    if vouches(node):
        return
    if "--origin" in node.machine.run("munged", "--help", timeout=30):
        _set_origin(node)
        node.machine.start(UNIT, again=True)
    if not vouches(node):
        raise Failure(
            f"munged says that this node is at {_origin(node)}, and Slurm has it at "
            f"{node.address}: hpctl's daemon will take no report of it"
        )


def _set_origin(node: Node) -> None:
    """In the file that the unit takes OPTIONS from; what else is in it stays."""
    named = re.search(r"(?m)^EnvironmentFile=-?(\S+)", node.machine.unit_text(UNIT) or "")
    if named is None:
        raise Failure(f"{UNIT} names no EnvironmentFile: its munged needs --origin {node.address}")
    path = node.machine.path(named[1])
    text = path.read_text() if path.is_file() else ""
    given = re.search(r"(?m)^OPTIONS=(.*)$", text)
    options = shlex.split(" ".join(shlex.split(given[1]))) if given else []
    options = [word for word in options if not word.startswith("--origin")]
    line = 'OPTIONS="{}"'.format(" ".join([*options, f"--origin={node.address}"]))
    node.machine.write(path, set_line(text, "OPTIONS=", line))
