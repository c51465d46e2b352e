"""This node's name in Slurm: that of the node with the NodeAddr in munged's credentials.

The head node accepts a report only if its MUNGE credential comes from the NodeAddr of the node that
it describes (`hpctl.wire.authentication`). So the agent asks Slurm for the same address: the host
name need not be Slurm's (`UseInstanceNames`), and `slurmd -C` only prints the host name. It works
configless too, as scontrol does. Slurm is asked for single nodes first, the last known one and the
one with this host's name (NodeName or NodeHostName): all nodes are 8 MB in a cluster of 10,000, and
are only requested where neither fits.
"""

import contextlib
import logging
import os
import re
import shutil
import socket
import time
from ipaddress import IPv4Address
from pathlib import Path

from hpctl.slurm.run import SlurmCommandRunner
from hpctl.toolkit.addresses import resolve_ipv4
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.vocabulary.identity import NodeName
from hpctl.wire import munge

log = logging.getLogger(__name__)

OPT_SLURM = Path("/opt/slurm/bin")
"""The folder of Slurm in HyperPod's AMIs, which is not in PATH."""
WAIT_S = 60.0
"""How long to try: a node may boot before its network, munged and slurmctld are ready."""
PAUSE_S = 3.0
_NODE = re.compile(r"^NodeName=(\S+) .*? NodeAddr=(\S+)", re.M)


class NodeNameError(HpctlError):
    """The error where Slurm has no single node at this node's address."""


def find_own_slurm_node_name(
    munge_socket: Path | None, spool: Path, wait_s: float = WAIT_S
) -> NodeName:
    """Return $SLURMD_NODENAME, else the name as above, tried for so long. Blocks.

    The name is kept in `spool` for a start without slurmctld. Raises NodeNameError, Unavailable.
    """
    name = os.environ.get("SLURMD_NODENAME")
    if name:
        return NodeName(name)
    limit, logged = time.monotonic() + wait_s, ""
    while True:
        try:
            return _find_node_name_by_address(munge_socket, spool / "slurm-name")
        except HpctlError as error:
            if time.monotonic() + PAUSE_S > limit:
                raise
            if str(error) != logged:
                logged = str(error)
                log.warning("this node's name is not known yet: %s %s", error, error.hint)
        time.sleep(PAUSE_S)


def _find_node_name_by_address(munge_socket: Path | None, kept: Path) -> NodeName:
    origin = _find_own_munge_address(munge_socket)
    last, _, address = _read_cached_node_name_file(kept).partition(" ")
    last = last if address == str(origin) else ""
    try:
        name = _find_node_name_by_scontrol(
            origin, [name for name in (last, _get_short_host_name()) if name]
        )
    except ServiceUnavailable:
        if not last:
            raise
        return NodeName(last)
    with contextlib.suppress(OSError):
        kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept.write_text(f"{name} {origin}")
    return name


def _find_own_munge_address(munge_socket: Path | None) -> IPv4Address:
    """Return the address that munged gives this node's credentials. Raises Unavailable."""
    try:
        return munge.decode_munge_credential(
            munge.encode_munge_credential(b"", munge_socket), munge_socket
        ).address
    except munge.MungeCredentialError as error:
        raise ServiceUnavailable(
            "cannot find this node's name in Slurm: munged on this node rejects a credential "
            f"that it made: {error}",
            error.hint,
        ) from error


def _find_node_name_by_scontrol(origin: IPv4Address, likely: list[str]) -> NodeName:
    found = shutil.which("scontrol")
    slurm = SlurmCommandRunner(bin_dir=None if found or not OPT_SLURM.is_dir() else OPT_SLURM)
    for name in likely:
        # This fails for a name that is unknown to Slurm.
        here = _list_node_names_at_address(
            origin, slurm.run("scontrol", "-o", "show", "node", name).text
        )
        if here:
            return here[0]
    ran = slurm.run("scontrol", "-o", "show", "node")
    if not ran.ok:
        raise ServiceUnavailable(
            f"cannot find this node's name in Slurm: scontrol failed: {ran.message}",
            "Check `scontrol ping` on this node, or give the name with --node (HPCTL_AGENT_NODE).",
        )
    here = _list_node_names_at_address(origin, ran.text)
    if len(here) == 1:
        return here[0]
    what = f"{len(here)} nodes, {here[0]} for one, have" if here else "no node has"
    raise NodeNameError(
        f"cannot find this node's name in Slurm: {what} the NodeAddr {origin}, which is this "
        "node's address"
        " according to munged",
        "Compare the address with `scontrol show node`; if munged's is wrong, start munged with "
        "--origin ADDRESS. Or"
        " give the node's name with --node (HPCTL_AGENT_NODE).",
    )


def _list_node_names_at_address(origin: IPv4Address, text: str) -> list[NodeName]:
    """Return the nodes of `scontrol show node` with this address. Host names are looked up one by
    one only where no address fits."""
    nodes = _NODE.findall(text)
    plain = [NodeName(name) for name, address in nodes if address == str(origin)]
    return plain or [
        NodeName(name) for name, host in nodes if origin in _resolve_host_addresses(host)
    ]


def _resolve_host_addresses(host: str) -> frozenset[IPv4Address]:
    try:
        return resolve_ipv4(host)
    except OSError:
        return frozenset()


def _get_short_host_name() -> str:
    """Return the short host name; empty for one that scontrol would read as an option or a
    hostlist."""
    name = socket.gethostname().partition(".")[0]
    return name if re.fullmatch(r"\w[\w-]*", name) else ""


def _read_cached_node_name_file(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
