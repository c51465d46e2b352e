"""A key for each user that opens every node, and an ssh that trusts the cluster's new nodes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from lifecycle.accounts import as_user, everybody
from lifecycle.failure import Failure, No
from lifecycle.node import Node

KEY = "id_ed25519"
CONF = "/etc/ssh/ssh_config.d/hpctl.conf"
CLIENT = """\
# Written by hpctl at the node's birth. A replaced node has a new host key: known_hosts loses
# the old one when the new node comes up, and the new one is learnt at the first connection.
Host ip-*
    StrictHostKeyChecking accept-new
    CheckHostIP no
"""


def applies(node: Node) -> Any:
    """Return whether everything is ours, and there are ssh and accounts."""
    if node.mode != "OnCreate":
        return No("the AMI has made keys (OnInitComplete)")
    if not shutil.which("ssh-keygen"):
        return No("no ssh-keygen on this machine")
    return node.machine.needs("accounts")


def _whole(node: Node) -> bool:
    for one in everybody(node):
        ssh = Path(one.pw_dir) / ".ssh"
        try:
            public = (ssh / (KEY + ".pub")).read_text().split()[1]
            if public not in (ssh / "authorized_keys").read_text() or not (ssh / KEY).exists():
                return False
        except (OSError, IndexError):
            if Path(one.pw_dir).is_dir():
                return False
    return True


def done(node: Node) -> bool:
    """Everybody with a home has a key that opens it."""
    path = node.machine.path(CONF)
    return path.exists() and path.read_text() == CLIENT and _whole(node)


def run(node: Node) -> None:
    """Make the keys that are missing, each with its user's own rights."""
    node.machine.write(node.machine.path(CONF), CLIENT)
    for one in everybody(node):
        home = Path(one.pw_dir)
        if home.is_dir():
            as_user(one, lambda home=home: _key(home / ".ssh", node.name))  # type: ignore[misc]


def _key(ssh: Path, node: str) -> None:
    ssh.mkdir(mode=0o700, exist_ok=True)
    key = ssh / KEY
    for left in (ssh / f".hpctl-{node}", ssh / f".hpctl-{node}.pub"):
        if left.exists():
            left.unlink()
    if not key.exists():
        part = ssh / f".hpctl-{node}"
        _keygen("-q", "-t", "ed25519", "-N", "", "-C", "hpctl", "-f", str(part))
        # Homes are shared, and nodes come up together: the first node to link wins, for all.
        with contextlib.suppress(FileExistsError):
            os.link(str(part), str(key))
        part.unlink()
        Path(str(part) + ".pub").unlink()
    public = _keygen("-y", "-f", str(key)).strip()
    own = ssh / (KEY + ".pub")
    if not own.exists() or own.read_text().strip() != public:
        fresh = ssh / f".hpctl-{node}.pub"
        fresh.write_text(public + "\n")
        os.replace(str(fresh), str(own))
    authorized = ssh / "authorized_keys"
    text = authorized.read_text() if authorized.exists() else ""
    if public.split()[1] not in text:
        with authorized.open("a") as file:
            file.write(("" if not text or text.endswith("\n") else "\n") + public + "\n")


def _keygen(*arguments: str) -> str:
    done = subprocess.run(
        ("ssh-keygen", *arguments),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise Failure("ssh-keygen: " + done.stderr.decode(errors="replace").strip()[-200:])
    return done.stdout.decode()
