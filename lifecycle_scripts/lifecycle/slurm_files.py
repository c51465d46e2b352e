"""Slurm's configuration on a controller: waiting for it, and lines of ours in it.

HyperPod's cluster agent writes slurm.conf, at birth and whenever the cluster changes: a line of
ours may go again, and nothing may depend on it.
"""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path

from lifecycle.failure import Failure
from lifecycle.node import Node

CONF_S = 60.0
"""How long the cluster agent may take to name this cluster's controller in slurm.conf: as long as
AWS's own scripts wait (base-config's lifecycle_script.py, 12 times 5 s)."""


def program(name: str) -> str:
    """Return one of Slurm's programs: AMIs have them in /opt/slurm/bin, which is in no script's
    PATH."""
    return shutil.which(name) or f"/opt/slurm/bin/{name}"


def wait_for_conf(node: Node) -> None:
    """Wait until slurm.conf names a controller of this cluster; go on with a warning after CONF_S.

    It may name it otherwise than resource_config.json does. Raises Failure where there is none.
    """
    conf = node.slurm_etc / "slurm.conf"
    deadline = time.monotonic() + CONF_S
    while True:
        text = conf.read_text() if conf.is_file() else ""
        if any(address in text for address in node.controllers):
            return
        if time.monotonic() > deadline:
            if not text.strip():
                raise Failure(f"no {conf} after {CONF_S:.0f} s: look at sagemaker-cluster-agent")
            print(
                "WARNING: {} names none of the controllers {}: going on with it as it is".format(
                    conf, ", ".join(node.controllers)
                )
            )
            return
        time.sleep(1)


def value(conf: Path, key: str) -> str | None:
    """Return what a key of a Slurm file is set to; None where it is not."""
    text = conf.read_text() if conf.is_file() else ""
    found = re.findall(rf"(?im)^[ \t]*{re.escape(key)}[ \t]*=[ \t]*(\S.*?)[ \t]*$", text)
    return str(found[-1]) if found else None


def set_line(text: str, pattern: str, line: str) -> str:
    """Return a text with the first line that a pattern begins replaced, or the line at its end."""

    def as_it_is(_: re.Match[str]) -> str:
        return line  # a password's backslashes are not for re to read

    changed, count = re.subn(f"(?im)^{pattern}.*$", as_it_is, text, count=1)
    if count:
        return changed
    return f"{text.rstrip()}\n{line}\n" if text.strip() else line + "\n"


def add_line(node: Node, conf: Path, line: str) -> bool:
    """Put a line at a file's end, where it has it not yet. True where it had not."""
    text = conf.read_text() if conf.exists() else ""
    if line in text.splitlines():
        return False
    mode = conf.stat().st_mode & 0o7777 if conf.exists() else 0o644
    text += "" if not text or text.endswith("\n") else "\n"
    node.machine.write(conf.resolve(), text + line + "\n", mode)
    return True


def last_words(node: Node, unit: str) -> str:
    """Return what a daemon logged last: with a separate log file, nothing is in systemd's
    journal."""
    log = node.machine.path("/var/log/slurm") / unit.replace(".service", ".log")
    lines = log.read_text(errors="replace").splitlines()[-200:] if log.is_file() else []
    for word in (" fatal: ", " error: "):
        found = [line for line in lines if word in line]
        if found:
            return found[-1][-300:]
    return node.machine.last_words(unit)
