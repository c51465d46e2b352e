"""What a sandbox consists of, where its files lie, and which ports it has."""

from __future__ import annotations

import contextlib
import os
import random
import re
import secrets
import socket
import stat
import tempfile
from collections import deque
from pathlib import Path
from typing import Any, Literal

import msgspec

from hpctl.clusters import bundle
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.instance_join import guess_hyperpod_node_name

MAX_NODES = 200
"""Addresses 127.0.1.1 to 127.0.1.200 stand for instances, 127.0.2.x for those that moved."""

ADAPTER = "HPCTL_SANDBOX_ADAPTER"
"""The `adapter` of sandboxes that do not name one: those of the tests, the soak and the matrix."""

SOCKET_PATH_MAX = 107
"""sun_path holds 108 bytes with the closing zero (unix(7))."""

# slurmstepd's socket is the deepest path: <state>/spool/<node>/<node>_<job>.<step>
_DEEPEST = "/spool/gpu-compute-200/gpu-compute-200_999999.4294967295"

# Below Linux's default ephemeral range (32768-60999), so that no outgoing connection takes one.
_PORTS = range(12000, 32000)
_BLOCK = 16
"""So many ports are claimed together."""


class SandboxPorts(msgspec.Struct, frozen=True, kw_only=True):
    """TCP ports of one sandbox; node N's slurmd has `slurmd + N`. `metrics` is that of all agents,
    as the instances of several sandboxes on one host have the same addresses."""

    slurmctld: int
    intake: int
    emulator: int
    moto: int
    metrics: int
    slurmd: int


class SandboxSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One sandbox as it was asked for. Kept in its state directory as spec.json.

    `heads`: with two, each has its own slurmctld, daemon and address, and all share a
    database, which `database` may name; their services are `daemon`, `daemon-2` and so on.
    `node_names` is how HyperPod names Slurm's nodes: `ip` by the address, `group` as with
    UseInstanceNames, where a replacement keeps the name and, without netns, has a new address.
    `prefix` is a Slurm installation (its bin and sbin), "" for the one on PATH. `lifecycle` is
    a directory that stands for the groups' S3 prefix, "" for the one that hpctl ships.
    `cloud_nodes`: slurm.conf declares the nodes with State=CLOUD.
    `configless`: instances have no slurm.conf; their slurmd has slurmctld send it (root).
    `cpus`: how many CPUs Slurm gives each node; the machine need not have them.
    `adapter` is the daemon's `slurm.adapter`, by default $HPCTL_SANDBOX_ADAPTER.
    `slurm_conf` is text appended to slurm.conf, `config` keys merged over hpctl.yaml's.
    `health_check`: slurm.conf names a HealthCheckProgram that prints the agents' verdicts.
    `epilog_slurmctld` is a script, "" for that of slurm_plugins/ where there is a daemon to wake.
    `access_key` and `secret_key` are what the emulated AWS takes, and no others: what lies in its
    buckets is run as the user who started the sandbox.
    `slots` is how many nodes there may be in all when groups grow, 0 for just `nodes`. `empty`: no
    cluster is there until CreateCluster is called, of at most `nodes` instances besides the
    controller; `cluster_name` is what the daemon's file calls it then.
    `retry_time` is after how many seconds a launch that failed is tried again in that case.
    `hma`: HyperPod's health agents mark nodes in Slurm, `hma_latency` seconds (least and most)
    after a fault, and `hma_false_marks` times an hour a node that is well.
    `clock_library`: a library that plays the wall clock of the daemon and of each agent, by the
    file that $HPCTL_TEST_CLOCK names; with "" they have the machine's.
    `disks`: each instance sees a separate disk at Layout.disk, empty when it is new (root).
    `boot_time` is how long an instance takes before its first process runs, in seconds.
    `hardware` is what each node has when it boots, by hardware.KINDS; `agent_config` is a new
    instance's agent.yaml. `nvml_library` is a directory with a libnvidia-ml.so.1 that plays GPUs
    by the script that $HPCTL_NVML_STUB names, and `nvml_script` is that script as a boot finds
    it; "" plays none.
    """

    name: str
    id: str
    state: str
    ports: SandboxPorts
    heads: Literal[1, 2] = 1
    database: Literal["", "mariadb", "postgresql"] = ""
    nodes: int = 8
    groups: int = 1
    slots: int = 0
    empty: bool = False
    boot_time: float = 0.0
    prefix: str = ""
    adapter: Literal["auto", "cli", "pyslurm"] = "auto"
    netns: bool = False
    disks: bool = False
    clock_library: str = ""
    mode: Literal["observe", "assist", "own"] = "observe"
    daemon: bool = False
    agents: bool = True
    emulator: bool = True
    moto: bool = False
    access_key: str = "sandbox"
    secret_key: str = "sandbox"  # noqa: S105 -- api.py makes one for each sandbox
    cluster_name: str = "demo"
    node_names: Literal["ip", "group"] = "ip"
    retry_time: float = 5.0
    health_check_time: float = 2.0
    node_recovery: Literal["None", "Automatic"] = "None"
    hma: bool = False
    hma_latency: tuple[float, float] = (5.0, 30.0)
    hma_false_marks: float = 0.0
    lifecycle: str = ""
    epilog_slurmctld: str = ""
    health_check: bool = False
    slurm_conf: str = ""
    cloud_nodes: bool = False
    configless: bool = False
    cpus: int = 16
    config: dict[str, Any] = {}
    hardware: dict[str, int] = {}
    agent_config: dict[str, Any] = {}
    plugins: str = ""
    nvml_library: str = ""
    nvml_script: str = ""

    @property
    def cluster(self) -> str:
        """Return the Slurm and HyperPod cluster name, unique to this sandbox's life."""
        return self.id

    @property
    def places(self) -> int:
        """Return how many nodes there may be."""
        return max(self.nodes, self.slots)

    @property
    def layout(self) -> SandboxPaths:
        """Return where its files lie."""
        return SandboxPaths(Path(self.state))

    @property
    def head_address(self) -> str:
        """Return where nodes reach the head node."""
        return "10.77.0.1" if self.netns else "127.0.0.1"

    @property
    def head_addresses(self) -> list[str]:
        """Return those of all head nodes."""
        first = self.head_address.removesuffix("1")
        return [f"{first}{number}" for number in range(1, self.heads + 1)]

    @property
    def head_intake_urls(self) -> list[str]:
        """Their intakes."""
        return [f"http://{address}:{self.ports.intake}" for address in self.head_addresses]

    def address(self, number: int) -> str:
        """Return the address of node `number`, from 1."""
        return f"10.77.1.{number}" if self.netns else f"127.0.1.{number}"

    def node(self, number: int) -> str:
        """Return the Slurm name of node `number`: made from the address, or
        `gpu-compute-<number>`."""
        if self.node_names == "group":
            return f"gpu-compute-{number}"
        return guess_hyperpod_node_name(self.address(number), "")

    def make_replacement_address(self, address: str) -> str:
        """Return the address of an instance that takes the place of one at `address`.

        The last octet stays: it is the place's number, which its slurmd's port is made from.
        """
        if self.node_names == "ip" or self.netns:
            return address
        _, _, third, number = address.split(".")
        return f"127.0.{3 - int(third)}.{number}"

    @property
    def names(self) -> list[str]:
        """Return the Slurm names of all nodes."""
        return [self.node(number) for number in range(1, self.nodes + 1)]

    @property
    def lifecycle_dir(self) -> Path:
        """Return the directory that stands for the groups' S3 prefix."""
        return Path(self.lifecycle) if self.lifecycle else bundle.find_lifecycle_script_directory()

    def group(self, number: int) -> str:
        """Return the worker group of node `number`: `worker-1`, ... in blocks of equal size."""
        return f"worker-{(number - 1) * self.groups // self.nodes + 1}"

    def find_initial_slot(self, name: str) -> tuple[int, ...]:
        """Return the slot of `worker-1-3`, where it is an instance that the sandbox starts with."""
        group, _, index = name.rpartition("-")
        number = group.removeprefix("worker-")
        members = self.members(int(number)) if number.isdigit() else []
        at = int(index) - 1
        return (members[at],) if at < len(members) else ()

    def members(self, group: int) -> list[int]:
        """Return the node numbers of one worker group, from 1."""
        return [n for n in range(1, self.nodes + 1) if self.group(n) == f"worker-{group}"]


class SandboxPaths:
    """Every path of a sandbox, all below its one state directory."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.spec = state / "spec.json"
        """The Spec, as JSON."""
        self.slurm_conf = state / "etc" / "slurm.conf"
        self.hosts = state / "etc" / "hosts"
        """The head node's slurm.conf."""
        self.config = state / "hpctl.yaml"
        """The daemon's configuration."""
        self.daemon = state / "daemon"
        """The daemon's state_dir."""
        self.database = state / "db"
        """The database of several heads."""
        self.munge_key = state / "etc" / "munge.key"
        """The cluster's key."""
        self.munge_socket = state / "head" / "munge.sock"
        """The head node's munged."""
        self.control = state / "control.sock"
        """The supervisor's control socket."""
        self.progress = state / "progress.jsonl"
        """What `up` shows: one JSON object a line."""
        self.logs = state / "log"
        """Return the logs of all parts."""
        self.aws = state / "aws.json"
        """What moto was filled with, as JSON."""
        self.cluster_file = state / "cluster.yaml"
        """A cluster.yaml that names what moto was filled with."""

    def of_head(self, number: int) -> tuple[Path, Path]:
        """Return the configuration and the state_dir of the daemon of head node `number`, from
        1."""
        if number == 1:
            return self.config, self.daemon
        return self.state / f"hpctl-{number}.yaml", self.state / f"daemon-{number}"

    def get_clock_offset_path(self, host: str) -> Path:
        """Return the offset of a node's clock; with an empty name, of the head node's."""
        return (self.of_node(host) if host else self.state / "head") / "clock"

    @property
    def disk(self) -> Path:
        """Return where each instance sees its own disk."""
        return self.state / "nvme"

    def of_node(self, node: str) -> Path:
        """Return what an instance's own disk would hold."""
        return self.state / "nodes" / node


def load_sandbox_spec(state: Path) -> SandboxSpec | None:
    """Return the sandbox in this directory, or None where there is none."""
    try:
        return msgspec.json.decode(SandboxPaths(state).spec.read_bytes(), type=SandboxSpec)
    except FileNotFoundError:
        return None


def save_sandbox_spec(spec: SandboxSpec) -> None:
    """Write spec.json, in one piece."""
    part = spec.layout.spec.with_suffix(".part")
    part.touch(mode=0o600)
    part.write_bytes(msgspec.json.encode(spec))
    part.replace(spec.layout.spec)


def choose_state_directory(name: str) -> Path:
    """Return where the sandbox of this name lives: below $XDG_STATE_HOME, or below /tmp where that
    path is too long for the unix sockets in it, or closed to the other users that munged serves.
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,23}", name):
        raise HpctlError(
            f"{name!r} is not a valid name of a sandbox",
            "Use at most 24 lower-case letters, digits and hyphens, and begin with a letter.",
        )
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    state = Path(home) / "hpctl" / "sandbox" / name
    if len(str(state) + _DEEPEST) > SOCKET_PATH_MAX or not _is_world_searchable(state):
        state = choose_user_sandbox_directory() / name
    return state


def choose_user_sandbox_directory() -> Path:
    """Return where this user's sandboxes live when they cannot live at home."""
    return Path(tempfile.gettempdir()) / f"hpctl-{os.getuid()}"


def _is_world_searchable(state: Path) -> bool:
    """Return whether anybody may walk down to here: munged refuses a socket where not."""
    there = [path for path in state.parents if path.exists()]
    return all(path.stat().st_mode & stat.S_IXOTH for path in there)


def make_state_directory(state: Path) -> None:
    """Make a state directory, in parents that no other user can have prepared.

    Raises HpctlError where a directory below /tmp is another user's.
    """
    # munged refuses to work below what a group may write to, whatever the user's umask is.
    umask = os.umask(0o022)
    try:
        state.mkdir(parents=True)
        state.chmod(0o711)  # others walk through to munged's socket, and see nothing on the way
    finally:
        os.umask(umask)
    parent = state.parent.stat()
    if parent.st_uid not in (os.getuid(), 0):
        raise HpctlError(
            f"cannot keep the sandbox's files in {state.parent}: the directory belongs to another "
            f"user (uid {parent.st_uid})"
        )


def make_sandbox_id(name: str) -> str:
    """A name that no other sandbox has had."""
    return f"{name}-{secrets.token_hex(3)}"


_CLAIMS = 8
_claims: deque[contextlib.ExitStack] = deque()
"""The claims on the ports that this process has chosen last: earlier ones are bound by now."""


def find_free_sandbox_ports(nodes: int) -> SandboxPorts:
    """Return a run of free TCP ports, tried by binding them. Raises HpctlError.

    No other process gets a port of the run meanwhile: sandboxes that start at the same time find
    the same ports free, as none has bound them yet.
    """
    wanted = nodes + 6
    for _ in range(50):
        first = random.randrange(_PORTS.start, _PORTS.stop - wanted)  # noqa: S311
        ports = range(first, first + wanted)
        if all(_is_port_free(port) for port in ports) and _claim_port_blocks(ports):
            return SandboxPorts(
                slurmctld=first,
                intake=first + 1,
                emulator=first + 2,
                moto=first + 3,
                metrics=first + 4,
                slurmd=first + 5,
            )
    raise HpctlError(
        f"the sandbox needs {wanted} consecutive free TCP ports between {_PORTS[0]} and "
        f"{_PORTS[-1]}, but this machine has none",
        "End programs that listen there (`ss -ltn` lists them), or start fewer nodes: "
        "`hpctl sandbox up --help`.",
    )


def _claim_port_blocks(ports: range) -> bool:
    """Claim the blocks of a run of ports; False where another process has claimed one of them.

    A claim is a Unix socket's abstract name: it leaves no file, goes with its process, and is of
    the network namespace, as the ports are (unix(7)).
    """
    with contextlib.ExitStack() as claims:
        for block in range(ports.start // _BLOCK, ports[-1] // _BLOCK + 1):
            claim = claims.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
            try:
                claim.bind(f"\0hpctl-sandbox-ports-{block}")
            except OSError:
                return False
        _claims.append(claims.pop_all())
    if len(_claims) > _CLAIMS:
        _claims.popleft().close()
    return True


def _is_port_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
