"""A bucket as a directory, by Mountpoint for Amazon S3. Off by default."""

from __future__ import annotations

import shutil
from typing import Any

from lifecycle.failure import Failure
from lifecycle.mounting import mounted
from lifecycle.node import Node
from lifecycle.packages import install, whole

PROGRAM = "mount-s3"
UNIT = "hpctl-mount-s3.service"
SOURCE = "https://s3.amazonaws.com/mountpoint-s3-release/latest/{}/mount-s3.deb"
TEXT = """# Written by hpctl at the node's birth.
[Unit]
Description=Mountpoint for Amazon S3: {bucket} on {where}
Wants=network-online.target
After=network-online.target

[Service]
Type=forking
ExecStart={program} --allow-other {options}{bucket} {where}
ExecStop=/bin/umount {where}
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""


def applies(node: Node) -> Any:
    """Return whether there are systemd and mounts; that a bucket is named, `bundle` has seen to."""
    return node.machine.needs("systemd", "mounts")


def _where(node: Node) -> str:
    return str(node.config["mount_s3"]["mount_path"]).rstrip("/")


def _text(node: Node) -> str:
    own = node.config["mount_s3"]
    return TEXT.format(
        program=shutil.which(PROGRAM) or "/usr/bin/" + PROGRAM,
        bucket=own["bucket"],
        where=_where(node),
        options="".join(option + " " for option in own["options"]),
    )


def _installed(node: Node) -> bool:
    return shutil.which(PROGRAM) is not None and whole(node, [PROGRAM])


def done(node: Node) -> bool:
    """Return whether the bucket is mounted, now and at every boot."""
    if not _installed(node) or node.machine.unit_text(UNIT) != _text(node):
        return False
    return node.machine.up(UNIT) and (
        not node.machine.running or mounted(node, _where(node)) is not None
    )


def run(node: Node) -> None:
    """The program where it is missing, the unit, the mount."""
    machine = node.machine
    if not _installed(node):
        try:
            install(node, "mount_s3", [PROGRAM])
        except Failure as failure:
            arch = machine.run("uname", "-m").strip().replace("aarch64", "arm64")
            raise Failure(f"{failure} ({SOURCE.format(arch)})") from failure
    machine.path(_where(node)).mkdir(parents=True, exist_ok=True)
    machine.write(machine.path("/etc/systemd/system") / UNIT, _text(node))
    machine.start(UNIT, again=True)
