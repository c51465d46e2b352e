"""Network namespaces: the head and every node on one bridge, so that a cable can be pulled.

The head's namespace holds the bridge, 10.77.0.1; each instance's init has one of its own with
10.77.1.N. All are unnamed, so they are gone with their last process and nothing outside is ever
touched. Needs root and ip(8).
"""

import os
import subprocess
import time

from hpctl.errors import HpctlError
from hpctl.sandbox.packages import Programs

BRIDGE = "br0"
HEAD = "10.77.0.1"


def make_head(programs: Programs) -> None:
    """Give this process's own, fresh namespace its loopback and the bridge."""
    for arguments in (
        ["link", "set", "lo", "up"],
        ["link", "add", BRIDGE, "type", "bridge"],
        ["addr", "add", f"{HEAD}/16", "dev", BRIDGE],
        ["addr", "add", "10.77.0.2/16", "dev", BRIDGE],
        ["link", "set", BRIDGE, "up"],
    ):
        _ip([programs["ip"], *arguments])


def connect(programs: Programs, pid: int, address: str) -> None:
    """Lay a cable from the bridge to the namespace of `pid`, which must be about to have one."""
    deadline = time.monotonic() + 10
    while os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        if time.monotonic() > deadline:
            raise HpctlError(f"process {pid} got no network namespace of its own")
        time.sleep(0.005)
    port, ip = port_of(address), programs["ip"]
    # The last instance's cable goes with its namespace, but a moment after its last process.
    subprocess.run([ip, "link", "del", port], capture_output=True, timeout=10, check=False)
    _ip([ip, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid)])
    _ip([ip, "link", "set", port, "master", BRIDGE, "up"])
    inside = [programs["nsenter"], f"--net=/proc/{pid}/ns/net", "--", ip]
    _ip([*inside, "link", "set", "lo", "up"])
    _ip([*inside, "addr", "add", f"{address}/16", "dev", "eth0"])
    _ip([*inside, "link", "set", "eth0", "up"])


def set_cable(programs: Programs, address: str, *, up: bool) -> None:
    """Pull a node's cable, or plug it in again."""
    _ip([programs["ip"], "link", "set", port_of(address), "up" if up else "down"])


def port_of(address: str) -> str:
    """The bridge's end of a node's cable."""
    return "node" + address.rsplit(".")[-1]


def _ip(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode != 0:
        raise HpctlError(
            f"{' '.join(command)}: {done.stderr.strip()}",
            "Network namespaces need root and a kernel with veth and bridge.",
        )
