"""The settings of one run of the agent: heads, identity, places."""

import re
from pathlib import Path

from msgspec import Struct, field

from hpctl.detection.config import AgentConfig
from hpctl.detection.outside.sources import FindingSourceLocations
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import BootId, InstanceId, NodeName
from hpctl.wire.heads import HeadNodeAddress

#
# The configuration of one agent, and what it detects where that is missing.

BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")


ASSET_TAG_FILE = Path("/sys/devices/virtual/dmi/id/board_asset_tag")
"""Holds the EC2 instance id on Nitro instances."""


KERNEL_LOG = Path("/dev/kmsg")


SPOOL = Path("/var/lib/hpctl/agent")


class AgentSettings(Struct, frozen=True):
    """One agent's settings. `heads` are tried in turn; the first that answers is kept.

    `root` is put before every path that a timed check reads, for a simulated machine; `places` are
    those of scripts, plugins and HyperPod's health agent. `metrics`: where they are served,
    HOST:PORT, empty for nowhere; `metrics_allow`: networks, with commas.
    """

    heads: tuple[HeadNodeAddress, ...]
    node: NodeName
    instance: InstanceId
    boot: BootId
    kmsg: Path = KERNEL_LOG
    munge_socket: Path | None = None
    spool: Path = SPOOL
    heartbeat_s: float = 10.0
    kmsg_accept_user: bool = False
    root: Path = Path("/")
    config: AgentConfig = field(default_factory=AgentConfig)
    metrics: str = ""
    metrics_allow: str = ""
    places: FindingSourceLocations = field(default_factory=FindingSourceLocations)


def read_local_ec2_instance_id(node: NodeName, asset_tag: Path = ASSET_TAG_FILE) -> InstanceId:
    """Return the EC2 instance id. Where there is none, the node's name replaces it: without a cloud
    there is no id."""
    try:
        tag = asset_tag.read_text().strip()
    except OSError:
        tag = ""
    return InstanceId(tag if re.fullmatch(r"i-[0-9a-f]{8,17}", tag) else node)


def read_local_boot_id(path: Path = BOOT_ID_FILE) -> BootId:
    """Return the kernel's boot id. Raises HpctlError where it cannot be read: without it a new
    fault looks like an old one."""
    try:
        boot = path.read_text().strip()
    except OSError as error:
        raise HpctlError(
            f"the agent cannot read the machine's boot id from {path}: {error.strerror}",
            "Give another file with --boot-id-file.",
        ) from error
    if not boot:
        raise HpctlError(
            f"the agent cannot read the machine's boot id: {path} contains none",
            "Give another file with --boot-id-file.",
        )
    return BootId(boot)
