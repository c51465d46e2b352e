"""Nodes of one run: each has a host name and a network of its own, joined by a bridge.

All of it lies in the network, mount, host name and process namespaces of the run's own stage
(`tests.jobs.verdict_corpus.stage`), and ends with it.
"""

import subprocess
from pathlib import Path

BRIDGE = "fabric"
NETWORK = "10.77.0"
MOST_NODES = 8


def run(*command: str) -> None:
    """Run a command of the machine. Raises CalledProcessError."""
    subprocess.run(command, check=True, capture_output=True, timeout=30)


class Node:
    """One node. `inside` goes before a command that runs there."""

    def __init__(self, number: int) -> None:
        self.name = f"n{number + 1}"
        self.address = f"{NETWORK}.{number + 1}"
        self.port = f"port{number + 1}"
        # A shell says when it is there: namespaces are made before it starts.
        hold = ["unshare", "--net", "--uts", "sh", "-c", "echo; exec sleep 3600"]
        self._holder = subprocess.Popen(hold, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        self._holder.stdout.readline()
        spaces = f"/proc/{self._holder.pid}/ns"
        self.inside = ["nsenter", f"--net={spaces}/net", f"--uts={spaces}/uts", "--"]

    def connect(self) -> None:
        """Give it its host name, an address and a cable to the bridge."""
        pid = str(self._holder.pid)
        peer = f"cable{pid}"
        run("ip", "link", "add", self.port, "type", "veth", "peer", "name", peer)
        run("ip", "link", "set", self.port, "master", BRIDGE, "up")
        run("ip", "link", "set", peer, "netns", pid)
        self.run_inside("ip", "link", "set", peer, "name", "eth0")
        self.run_inside("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        self.run_inside("ip", "link", "set", "eth0", "up")
        self.run_inside("ip", "link", "set", "lo", "up")
        self.run_inside("hostname", self.name)

    def run_inside(self, *command: str) -> None:
        """Run a command on it."""
        run(*self.inside, *command)

    def cut(self, how: str) -> None:
        """Take its network away, as an operator, a switch or a driver does."""
        if how == "link down":
            self.run_inside("ip", "link", "set", "eth0", "down")
        elif how == "unplugged":
            run("ip", "link", "set", self.port, "nomaster")
        elif how == "blackhole":
            self.run_inside("ip", "route", "add", "blackhole", f"{NETWORK}.0/25")
            self.run_inside("ip", "route", "add", "blackhole", f"{NETWORK}.128/25")
        elif how == "wrong neighbor":
            # Another host answers for each address, as where two have one address.
            for number in range(MOST_NODES):
                address = f"{NETWORK}.{number + 1}"
                if address != self.address:
                    entry = ["ip", "neighbor", "replace", address, "lladdr", "02:00:00:00:00:01"]
                    self.run_inside(*entry, "dev", "eth0", "nud", "permanent")
        else:
            self.run_inside("ip", "address", "flush", "dev", "eth0")


def build_nodes(count: int, folder: Path) -> list[Node]:
    """Return so many connected nodes that know each other's names."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", BRIDGE, "type", "bridge")
    run("ip", "link", "set", BRIDGE, "up")
    nodes = [Node(number) for number in range(count)]
    for node in nodes:
        node.connect()
    hosts = folder / "hosts"
    lines = ["127.0.0.1 localhost", *(f"{node.address} {node.name}" for node in nodes)]
    hosts.write_text("\n".join(lines) + "\n")
    run("mount", "--bind", str(hosts), "/etc/hosts")
    return nodes
