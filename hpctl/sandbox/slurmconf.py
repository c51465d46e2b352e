"""The sandbox's slurm.conf and its companions, as text, for Slurm 22.05 to 26.05.

Only what the machine forces is set (one host, no cgroups, no accounting). Everything that the
recovery meets in the wild stays Slurm's own, the 121 s delay of a requeued job above all.

The nodes in it come and go with the instances, as HyperPod's cluster agent has it. A sandbox has so
many slots, each with an address. A free slot is a FUTURE node, which slurmctld does not
show; one that an instance has is in `dev` and in its group's partition. slurm.conf is rewritten and
`scontrol reconfigure` makes slurmctld read it: so a slurmctld that is started again knows the same
nodes. Jobs that run go on, and drained nodes stay drained (seen on 22.05, 24.11 and 26.05).
"""

import logging
import os
import pwd
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from hpctl.clusters.bundle import find_slurm_plugin_directory
from hpctl.sandbox.bootplan import make_sandbox_process_environment
from hpctl.sandbox.health_program import render_health_check_slurm_conf_lines
from hpctl.sandbox.machines import EmulatedMachine
from hpctl.sandbox.packages import SandboxPrograms
from hpctl.sandbox.spec import SandboxSpec

GPUS = 8

ETC_HOSTS = Path("/etc/hosts")

_TEMPLATE = Path(__file__).with_name("slurm.conf.in")


def render_slurm_conf(  # noqa: PLR0913 -- pure: all that the file says
    spec: SandboxSpec,
    programs: SandboxPrograms,
    munge_socket: Path,
    members: Mapping[str, str],
    partitions: Sequence[str] = (),
    addresses: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return slurm.conf for the user of this munged: the head node's, or a node's own.

    `members` are the nodes that are in the cluster, with their partitions; the other slots are
    FUTURE. `addresses` are those of nodes whose instance has moved. A node's own copy names every
    slot, so that it need not change when others come and go. It differs from the head's, which is
    what NO_CONF_HASH is for.
    """
    text = _TEMPLATE.read_text().format(
        cluster=spec.cluster,
        controllers=_render_slurmctld_host_lines(spec),
        timeout=30 if spec.heads == 1 else 10,
        port=spec.ports.slurmctld,
        user=_find_current_user_name(),
        munge=munge_socket,
        state=spec.state,
    )
    if programs.prefix and (Path(programs.prefix) / "lib" / "slurm").is_dir():
        text += f"PluginDir={programs.prefix}/lib/slurm\n"
    epilog = spec.epilog_slurmctld or (
        render_epilog_slurmctld_script(spec) and str(make_epilog_slurmctld_path(spec))
    )
    if epilog:
        text += f"EpilogSlurmctld={epilog}\n"
    text += render_health_check_slurm_conf_lines(spec)
    text += "".join(_format_node(spec, n, members, addresses) for n in range(1, spec.places + 1))
    for name in partitions or dict.fromkeys(members.values()):
        if name and name != "dev":
            text += _format_partition(name, [n for n, p in members.items() if p == name])
    text += _format_partition("dev", list(members), "Default=YES ")
    return text + (spec.slurm_conf.rstrip() + "\n" if spec.slurm_conf else "")


def _render_slurmctld_host_lines(spec: SandboxSpec) -> str:
    """Return the lines that name slurmctld's hosts: this machine, or two that it plays (see
    head.py)."""
    if spec.heads == 1:
        return f"SlurmctldHost={socket.gethostname().partition('.')[0]}({spec.head_address})\n"
    hosts = enumerate(spec.head_addresses, 1)
    lines = "".join(f"SlurmctldHost=head-{n}({address})\n" for n, address in hosts)
    return lines + "CommunicationParameters=NoCtldInAddrAny\n"


def render_hosts(spec: SandboxSpec, addresses: Mapping[str, str]) -> str:
    """Return an /etc/hosts that knows this machine's names, every node, and two or more heads."""
    names = dict(addresses)
    if spec.heads > 1:
        names |= {f"head-{n}": address for n, address in enumerate(spec.head_addresses, 1)}
    lines = (f"{address} {name}\n" for name, address in names.items())
    try:
        own = ETC_HOSTS.read_text(errors="replace").rstrip()
    except FileNotFoundError:
        own = "127.0.0.1 localhost"
    return f"{own}\n{''.join(lines)}"


def make_epilog_slurmctld_path(spec: SandboxSpec) -> Path:
    """Return where the sandbox's EpilogSlurmctld lies, if there is one."""
    return spec.layout.slurm_conf.parent / "epilog_slurmctld.sh"


def render_epilog_slurmctld_script(spec: SandboxSpec) -> str:
    """Return the EpilogSlurmctld of slurm_plugins/, with this sandbox's daemon; "" where it is not
    wanted.

    Without a daemon to wake Slurm is left as it comes.
    """
    if not spec.daemon:
        return ""
    script = find_slurm_plugin_directory() / "epilog_slurmctld.sh"
    daemons = [shlex.quote(str(spec.layout.of_head(n + 1)[1])) for n in range(spec.heads)]
    lines = [f"HPCTL_STATE_DIR={daemon} {shlex.quote(str(script))}\n" for daemon in daemons]
    return "#!/bin/sh\n" + "".join(lines)


def _find_current_user_name() -> str:
    """Return who we are, not who the environment says: slurmctld refuses to run as anybody else."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def map_initial_nodes_to_partitions(spec: SandboxSpec) -> dict[str, str]:
    """Return the nodes that a sandbox starts with, and their partitions."""
    if spec.empty:
        return {}
    return {spec.node(n): spec.group(n) for n in range(1, spec.nodes + 1)}


def map_unassigned_slot_nodes(spec: SandboxSpec) -> dict[str, str]:
    """Return every slot as a node in no partition: what an instance's copy names."""
    return {spec.node(n): "" for n in range(1, spec.places + 1)}


def _format_partition(name: str, nodes: Sequence[str], more: str = "") -> str:
    there = f"Nodes={','.join(nodes)} " if nodes else ""
    return f"PartitionName={name} {there}{more}MaxTime=INFINITE State=UP\n"


def _format_node(
    spec: SandboxSpec, number: int, members: Mapping[str, str], addresses: Mapping[str, str]
) -> str:
    name = spec.node(number)
    there = "CLOUD" if spec.cloud_nodes else "UNKNOWN"
    state = there if name in members else "FUTURE"
    return (
        f"NodeName={name} NodeAddr={addresses.get(name, spec.address(number))} "
        f"Port={spec.ports.slurmd + number} CPUs={spec.cpus} RealMemory=1000 Gres=gpu:{GPUS} "
        f"State={state}\n"
    )


def render_gres_conf(devices: Sequence[Path]) -> str:
    """gres.conf: every node has the same eight devices."""
    return f"Name=gpu File={devices[0].parent}/nvidia[0-{len(devices) - 1}]\n"


def render_cgroup_conf(programs: SandboxPrograms) -> str:
    """Return cgroup.conf: slurmd uses no cgroups, on any machine and in any container.

    slurmd loads a cgroup plugin when it starts, even when no other plugin needs one (_slurmd_init
    in src/slurmd/slurmd/slurmd.c). Without this file it detects the version. Where it finds cgroup
    v2, that plugin asks systemd over D-Bus for a scope, and slurmd ends without an answer
    (_init_new_scope_dbus in src/plugins/cgroup/v2/cgroup_v2.c).

    `disabled` is known from 24.05 on (Slurm commit 369e137db4; cgroup_g_init in
    src/interfaces/cgroup.c). Earlier releases look for a plugin of that name and end. On those,
    22.05 to 23.11, `cgroup/v1` is as good: every build with cgroups has it, its init() allocates
    lists and touches no file, and no plugin in slurm.conf.in calls it after that.
    """
    # The same on every machine of a release: a setting that depended on what is mounted, or on
    # whether systemd answers, would leave one of these cases untested.
    plugin = "disabled" if programs.version >= (24, 5, 0) else "cgroup/v1"
    return f"CgroupPlugin={plugin}\n"


def write_slurm_config_files(directory: Path, texts: dict[str, str]) -> None:
    """Write the files that are not empty; scripts can be run."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        if text:
            (directory / name).write_text(text)
            if text.startswith("#!"):
                (directory / name).chmod(0o755)


log = logging.getLogger(__name__)

TIMEOUT_S = 30
PAUSES_S = (0.1, 0.3, 0.0)
"""After each try of scontrol."""


class ClusterNodeMembership:
    """Which nodes are in the cluster. Its methods may be called from any thread."""

    def __init__(self, spec: SandboxSpec, programs: SandboxPrograms) -> None:
        self._spec = spec
        self._programs = programs
        self._lock = threading.Lock()
        self._members = map_initial_nodes_to_partitions(spec)
        places = range(1, spec.places + 1)
        self._addresses = {spec.node(n): spec.address(n) for n in places}
        self._partitions = list(dict.fromkeys(self._members.values()))

    def text(self) -> str:
        """Return the head node's slurm.conf as it should be now."""
        return render_slurm_conf(
            self._spec,
            self._programs,
            self._spec.layout.munge_socket,
            self._members,
            self._partitions,
            self._addresses,
        )

    def hosts(self) -> str:
        """Return the /etc/hosts that every instance should see now."""
        return render_hosts(self._spec, self._addresses)

    def join(self, machine: EmulatedMachine) -> bool:
        """Let a machine's node be a node of its partition; whether it was none before.

        A partition stays when its last node leaves: jobs may be waiting in it.
        """
        with self._lock:
            node, partition = str(machine.node), machine.partition
            moved = self._addresses[node] != machine.address
            if self._members.get(node) == partition and not moved:
                return False
            self._members[node], self._addresses[node] = partition, machine.address
            if partition and partition not in self._partitions:
                self._partitions.append(partition)
            self._write_and_reload_slurm_conf()
            return True

    def leave(self, machine: EmulatedMachine) -> None:
        """Take a machine's node out of Slurm; its jobs end, or are requeued, as on a dead node."""
        with self._lock:
            if self._members.pop(str(machine.node), None) is None:
                return
            name = f"NodeName={machine.node}"
            self._run_scontrol_with_retry("update", name, "State=DOWN", "Reason=instance deleted")
            self._run_scontrol_with_retry("update", name, "State=FUTURE")
            self._write_and_reload_slurm_conf()

    def has_partition_drift(self) -> bool:
        """Return whether the partitions in slurm.conf were edited since it was written."""
        with self._lock:
            found = self._spec.layout.slurm_conf.read_text()
            return _find_partition_lines(found) != _find_partition_lines(self.text())

    def rewrite(self) -> None:
        """Write slurm.conf again, and make slurmctld read it."""
        with self._lock:
            self._write_and_reload_slurm_conf()

    def _write_and_reload_slurm_conf(self) -> None:
        conf = self._spec.layout.slurm_conf
        part = conf.with_suffix(".part")
        part.write_text(self.text())
        part.replace(conf)
        if self._spec.layout.hosts.read_text() != self.hosts():
            # In place: the instances' mounts are of this inode.
            self._spec.layout.hosts.write_text(self.hosts())
        self._run_scontrol_with_retry("reconfigure")

    def _run_scontrol_with_retry(self, *arguments: str) -> None:
        """A slurmctld that just reads its configuration may hang up (22.05): ask it again.

        Without one nothing is lost: it reads slurm.conf when it is started again.
        """
        output = ""
        for pause_s in PAUSES_S:
            done = subprocess.run(
                [self._programs["scontrol"], *arguments],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
                env=make_sandbox_process_environment(self._spec),
                cwd=Path("/"),
            )
            if done.returncode == 0:
                return
            output = (done.stderr or done.stdout).strip()
            time.sleep(pause_s)
        log.warning("scontrol %s: %s", " ".join(arguments), output)


def _find_partition_lines(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("PartitionName="))
