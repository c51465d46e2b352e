"""Instances as real processes: one tree each, below a separate init.

The metadata service of a spot instance, which says that EC2 wants it back, listens on the
instance's own address, as only the link-local address of the real one is the same everywhere.
IMDSv2 only: a token first, and 404 for `spot/instance-action` until there is a notice.

With network namespaces the head and every node are on one bridge, so that a cable can be pulled.
The head's namespace holds the bridge, 10.77.0.1; each instance's init has its own with
10.77.1.N. All are unnamed, so they are gone with their last process and nothing outside is ever
touched. That needs root and ip(8).
"""

import contextlib
import functools
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from msgspec import Struct

from hpctl.sandbox import bootplan, slurmconf
from hpctl.sandbox.logs import read_last_log_lines
from hpctl.sandbox.machines import EmulatedMachine, LifecycleScriptError
from hpctl.sandbox.packages import SandboxPrograms
from hpctl.sandbox.proctree import kill_descendants, list_descendants, read_process_start_time
from hpctl.sandbox.slurmconf import ETC_HOSTS, ClusterNodeMembership
from hpctl.sandbox.spec import SandboxSpec
from hpctl.toolkit.compat import SAFE_PATH, UTC
from hpctl.toolkit.errors import HpctlError

BRIDGE = "br0"
HEAD = "10.77.0.1"
BRIDGE_MAC = "02:00:00:00:00:01"
"""Set by hand: else a bridge takes the lowest of its ports' and changes it as nodes come and go."""


def set_up_head_namespace(programs: SandboxPrograms) -> None:
    """Give this process's own, fresh namespace its loopback and the bridge."""
    for arguments in (
        ["link", "set", "lo", "up"],
        ["link", "add", BRIDGE, "address", BRIDGE_MAC, "type", "bridge"],
        ["addr", "add", f"{HEAD}/16", "dev", BRIDGE],
        ["addr", "add", "10.77.0.2/16", "dev", BRIDGE],
        ["link", "set", BRIDGE, "up"],
    ):
        _run_ip_command([programs["ip"], *arguments])


def connect_instance_network_namespace(programs: SandboxPrograms, pid: int, address: str) -> None:
    """Lay a cable from the bridge to the namespace of `pid`, which must be about to have one."""
    deadline = time.monotonic() + 10
    while os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        if time.monotonic() > deadline:
            raise HpctlError(
                f"cannot isolate a node's network: process {pid} has no separate network namespace"
            )
        time.sleep(0.005)
    port, ip = make_bridge_port_name(address), programs["ip"]
    # The last instance's cable goes with its namespace, but a moment after its last process.
    subprocess.run([ip, "link", "del", port], capture_output=True, timeout=10, check=False)
    _run_ip_command(
        [ip, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(pid)]
    )
    _run_ip_command([ip, "link", "set", port, "master", BRIDGE, "up"])
    inside = [programs["nsenter"], f"--net=/proc/{pid}/ns/net", "--", ip]
    _run_ip_command([*inside, "link", "set", "lo", "up"])
    _run_ip_command([*inside, "addr", "add", f"{address}/16", "dev", "eth0"])
    _run_ip_command([*inside, "link", "set", "eth0", "up"])


def set_node_network_link_state(programs: SandboxPrograms, address: str, *, up: bool) -> None:
    """Pull a node's cable, or plug it in again."""
    _run_ip_command(
        [programs["ip"], "link", "set", make_bridge_port_name(address), "up" if up else "down"]
    )


def make_bridge_port_name(address: str) -> str:
    """Return the bridge's end of a node's cable."""
    return "node" + address.rsplit(".")[-1]


def _run_ip_command(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    if done.returncode != 0:
        raise HpctlError(
            f"{' '.join(command)}: {done.stderr.strip()}",
            "Network namespaces need root and a kernel with veth and bridge.",
        )


TOKEN = "sandbox"  # noqa: S105 -- it protects nothing
ACTION = "/latest/meta-data/spot/instance-action"


class InstanceMetadataService:
    """Serves on one port of many addresses, in threads of this process."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self._servers: dict[str, _InstanceMetadataHttpServer] = {}

    def url(self, address: str) -> str:
        """Return where the service of the instance with this address is."""
        return f"http://{address}:{self._port}"

    def serve(self, address: str) -> None:
        """Serve a new instance, which has no notice yet."""
        with self._lock:
            server = self._servers.get(address)
            if server is None:
                server = self._servers[address] = _InstanceMetadataHttpServer(
                    (address, self._port), _InstanceMetadataRequestHandler
                )
                threading.Thread(
                    target=server.serve_forever, args=(0.1,), name=f"imds-{address}", daemon=True
                ).start()
            server.notice = ""

    def give_notice(self, address: str, at: datetime) -> None:
        """Say that the instance will be terminated at a time, aware."""
        with self._lock:
            server = self._servers.get(address)
            if server:
                when = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                server.notice = json.dumps({"action": "terminate", "time": when})


class _InstanceMetadataHttpServer(ThreadingHTTPServer):
    daemon_threads = True
    notice = ""


class _InstanceMetadataRequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _InstanceMetadataHttpServer

    def log_message(self, format: str, *args: object) -> None:
        """Quietly: agents ask every few seconds."""

    def do_PUT(self) -> None:
        """The token of IMDSv2."""
        self._send_text_response(200 if self.path == "/latest/api/token" else 404, TOKEN)

    def do_GET(self) -> None:
        """The notice, or 404."""
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            self._send_text_response(401, "")
        elif self.path != ACTION or not self.server.notice:
            self._send_text_response(404, "")
        else:
            self._send_text_response(200, self.server.notice)

    def _send_text_response(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


BOOT_TIMEOUT_S = 90.0
_OWN_RUN = (
    *("unshare", "--mount", "--propagation=unchanged", "sh", "-c"),
    # In a chroot / is no mount, and the first command is refused.
    'mount --make-rprivate / 2>/dev/null; mount -t tmpfs tmpfs /run && exec "$@"',
    "sh",
)
"""Runs a command with a private, empty /run."""


class HyperPodServiceCallbacks(Struct):
    """What an instance gets from the service that owns it, and gives to it.

    `resource_config` is the content of resource_config.json, empty for that of the machines that
    are known here. `fetch` brings what lies below an S3 URI into a directory; None copies the
    sandbox's own lifecycle directory. `log` takes the lines of a lifecycle log.
    """

    resource_config: Callable[[EmulatedMachine], dict[str, Any]] = lambda _machine: {}
    fetch: Callable[[str, Path], None] | None = None
    log: Callable[[EmulatedMachine, list[str]], None] = lambda _machine, _lines: None


class LocalMachineBackend:
    """Boots, kills, freezes and reboots instances on this machine. Thread-safe per machine."""

    def __init__(self, spec: SandboxSpec, programs: SandboxPrograms) -> None:
        self._spec = spec
        self._programs = programs
        self._slots = ClusterNodeMembership(spec, programs)
        self._service = HyperPodServiceCallbacks()
        self.imds = InstanceMetadataService(spec.ports.emulator)
        self._inits: dict[str, subprocess.Popen[bytes]] = {}
        self._machines: dict[str, EmulatedMachine] = {}
        self._failures: dict[str, HpctlError] = {}
        self._lock = threading.Lock()
        # PDEATHSIG and a half-dead starter thread do not go together: one thread starts all.
        self._spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawn")

    def connect(self, service: HyperPodServiceCallbacks) -> None:
        """Serve instances as the emulated service says from now on: it is created with these
        machines, and starts after them."""
        self._service = service

    def give_notice(self, machine: EmulatedMachine, at: datetime) -> None:
        """Have a spot instance read in its metadata that it ends at that time."""
        self.imds.give_notice(machine.address, at)

    def boot(self, machine: EmulatedMachine) -> None:
        """See Machines. A controller's or login node's daemons are the head's: it only runs the
        lifecycle script here, where the emulated service owns all instances.
        """
        with self._lock:
            self._machines[machine.name] = machine
        self._kill_machine_processes(machine)
        if machine.role != "compute":
            if self._spec.empty:
                self._boot_with_lifecycle_script(
                    machine, self._make_empty_node_directories(machine), alone=True
                )
            return
        # Before its scripts run, as HyperPod does it: a node that fails them stays in Slurm, and
        # down, as long as it has its place in the cluster.
        self._slots.join(machine)
        if has_instance_metadata_service(self._spec, machine):
            self.imds.serve(machine.address)
        with self._record_boot_failure(machine):
            self._boot_with_lifecycle_script(
                machine, self._make_empty_node_directories(machine), alone=False
            )

    def destroy(self, machine: EmulatedMachine) -> None:
        """See Machines."""
        self._kill_machine_processes(machine)
        with self._lock:
            if self._machines.get(machine.name) == machine:
                del self._machines[machine.name]

    def retire(self, machine: EmulatedMachine) -> None:
        """See Machines."""
        self.destroy(machine)
        if machine.role == "compute":
            self._slots.leave(machine)

    def reboot(self, machine: EmulatedMachine) -> None:
        """See Machines."""
        if machine.role != "compute":
            return
        self._kill_machine_processes(machine)
        directory = self._spec.layout.of_node(machine.node)
        plan = bootplan.make_instance_boot_plan(self._spec, self._programs, machine, None)
        with self._record_boot_failure(machine):
            self._start_instance_and_wait_for_boot(machine, plan, directory)

    @contextlib.contextmanager
    def _record_boot_failure(self, machine: EmulatedMachine) -> Iterator[None]:
        """Keep the error of a boot for `find_node_boot_failure`, until the node boots again."""
        self._failures.pop(machine.node, None)
        try:
            yield
        except HpctlError as error:
            self._failures[machine.node] = error
            raise

    def alive(self, machine: EmulatedMachine) -> bool:
        """See Machines."""
        if machine.role != "compute":
            return True
        return bool(read_process_start_time(self.find_node_daemon_pid(machine.node, "slurmd")))

    def has_partition_drift(self) -> bool:
        """See Machines."""
        return self._slots.has_partition_drift()

    def restore_slurm_conf_partitions(self) -> None:
        """See Machines."""
        self._slots.rewrite()

    def find_machine_of_node(self, node: str) -> EmulatedMachine | None:
        """Return the machine that stands for this node now."""
        with self._lock:
            return next((m for m in self._machines.values() if m.node == node), None)

    def machines(self) -> list[EmulatedMachine]:
        """Return every machine there is, in order of name."""
        with self._lock:
            return sorted(
                self._machines.values(), key=lambda m: (m.group, int(m.name.rsplit("-")[-1]))
            )

    def processes(self, node: str) -> list[int]:
        """Return every process of a node's instance, its init first; empty when it is dead."""
        init = self._inits.get(node)
        if init is None or init.poll() is not None:
            return []
        return [init.pid, *list_descendants(init.pid)]

    def find_node_daemon_pid(self, node: str, what: str) -> int:
        """Return the pid of a node's `slurmd` or `agent`; 0 where it has none."""
        try:
            text = (self._spec.layout.of_node(node) / f"{what}.pid").read_text()
        except FileNotFoundError:
            return 0
        return int(text or 0)

    def find_node_boot_failure(self, node: str) -> HpctlError | None:
        """Say why a node's slurmd does not run after its boot; None where it runs."""
        failure = self._failures.get(node)
        if failure is not None:
            return HpctlError(f"{node}: {failure}", failure.hint)
        if read_process_start_time(self.find_node_daemon_pid(node, "slurmd")):
            return None
        log = self._spec.layout.logs / f"slurmd.{node}.out"
        return HpctlError(
            f"slurmd of node {node} in the sandbox does not run: {read_last_log_lines(log)}",
            f"Read its log: {log}",
        )

    def crash(self, node: str) -> None:
        """SIGKILL everything on the node, as a power cut does; the instance stays in the list."""
        machine = self.find_machine_of_node(node)
        if machine is not None:
            self._kill_machine_processes(machine)

    def list_instance_init_pids(self) -> list[int]:
        """Return the first process of every instance."""
        return [init.pid for init in list(self._inits.values())]

    def _kill_machine_processes(self, machine: EmulatedMachine) -> None:
        init = self._inits.pop(machine.node, None)
        if init is None:
            return
        # While the init lives it adopts what forks away from us; so it goes last.
        kill_descendants(init.pid)
        init.kill()
        init.wait(10)
        for stream in (init.stdin, init.stdout):
            if stream is not None:
                stream.close()
        directory = self._spec.layout.of_node(machine.node)
        for what in ("slurmd", "agent"):
            (directory / f"{what}.pid").unlink(missing_ok=True)

    def _make_empty_node_directories(self, machine: EmulatedMachine) -> Path:
        """Return a new instance's empty disk."""
        directory = self._spec.layout.of_node(machine.node)
        spool = Path(self._spec.state) / "spool" / machine.node
        for old in (directory, spool):
            shutil.rmtree(old, ignore_errors=True)
            old.mkdir(parents=True)
        if not self._spec.configless:
            self._write_node_slurm_config_files(directory)
        return directory

    def _write_node_slurm_config_files(self, directory: Path) -> None:
        everywhere = slurmconf.map_unassigned_slot_nodes(self._spec)
        conf = slurmconf.render_slurm_conf(
            self._spec, self._programs, directory / "munge.sock", everywhere
        )
        etc = self._spec.layout.slurm_conf.parent
        texts = {"slurm.conf": conf}
        for name in ("gres.conf", "cgroup.conf"):
            texts[name] = (etc / name).read_text()
        slurmconf.write_slurm_config_files(directory, texts)

    def _boot_with_lifecycle_script(
        self, machine: EmulatedMachine, directory: Path, *, alone: bool
    ) -> None:
        """Run the lifecycle script, then slurmd and agent unless it is `alone`; its output
        goes to the service's log however it ends.
        """
        config = self._service.resource_config(machine) or self._make_resource_config()
        step = bootplan.make_lifecycle_script_boot_step(
            self._spec, machine, config, self._service.fetch
        )
        if alone and step is None:
            return
        if has_instance_metadata_service(self._spec, machine):
            bootplan.write_spot_agent_config(self._spec, machine, self.imds.url(machine.address))
        plan = bootplan.make_instance_boot_plan(
            self._spec, self._programs, machine, step, alone=alone
        )
        try:
            self._start_instance_and_wait_for_boot(machine, plan, directory)
        except LifecycleScriptError as error:
            self._upload_lifecycle_script_log(machine, directory, str(error))
            raise
        if step:
            self._upload_lifecycle_script_log(machine, directory, "")

    def _make_resource_config(self) -> dict[str, Any]:
        name = self._spec.cluster
        arn = f"arn:aws:sagemaker:us-east-1:000000000000:cluster/{name}"
        return bootplan.make_hyperpod_resource_config(name, arn, {}, self.machines())

    def _upload_lifecycle_script_log(
        self, machine: EmulatedMachine, directory: Path, failure: str
    ) -> None:
        """Bring the script's output to the service's log, in HyperPod's frame."""
        path = directory / "lifecycle.log"
        output = path.read_text(errors="replace").splitlines() if path.exists() else []
        last = f"failed: {failure}" if failure else "succeeded."
        self._service.log(
            machine,
            [
                f"[SageMaker] Downloading lifecycle scripts from {machine.source_s3_uri}",
                *output,
                f"[SageMaker] Lifecycle scripts {last}",
            ],
        )

    def _start_instance_and_wait_for_boot(
        self, machine: EmulatedMachine, plan: dict[str, Any], directory: Path
    ) -> None:
        (directory / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (directory / "kmsg").write_bytes(b"")
        # The journal of this boot: its reader cannot know it by the machine's own boot.
        (directory / "hma.log").unlink(missing_ok=True)
        (directory / "boot_time").write_text(str(time.time()))
        path = directory / "boot.json"
        path.write_text(json.dumps(plan))
        init = self._spawner.submit(self._start_init, plan["wait"], path, machine).result()
        self._inits[machine.node] = init
        if plan["wait"]:
            connect_instance_network_namespace(self._programs, init.pid, machine.address)
            assert init.stdin is not None
            init.stdin.write(b"go\n")
            init.stdin.flush()
        try:
            self._wait_for_boot(machine, init)
        except LifecycleScriptError:
            self._kill_machine_processes(machine)
            raise

    def _start_init(
        self, own_network: bool, plan: Path, machine: EmulatedMachine
    ) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-S", *SAFE_PATH, "hpctl.sandbox.init", str(plan)]
        command = [*self._make_private_mounts_command(plan.parent, machine), *command]
        if own_network:
            command = [self._programs["unshare"], "--net", "--", *command]
        env = bootplan.make_sandbox_process_environment(self._spec)
        env["SLURM_CONF"] = str(plan.parent / "slurm.conf")
        if self._spec.configless:
            del env["SLURM_CONF"]
        with (plan.parent / "init.log").open("ab") as sink:
            return subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=sink,
                env=env,
                start_new_session=True,
            )

    def _make_private_mounts_command(self, directory: Path, machine: EmulatedMachine) -> list[str]:
        """Return the command that gives an instance private mounts; empty where it has none.

        They are the cluster's host names, as on HyperPod, where this process may mount, with
        `disks` the instance's disk, and for a configless slurmd a private /run.
        """
        binds: list[tuple[Path, Path]] = []
        if self._can_mount_hosts_file:
            binds.append((self._spec.layout.hosts, ETC_HOSTS))
        if self._spec.disks:
            disk, seen = directory / f"disk-{machine.instance_id}", self._spec.layout.disk
            for made in (disk, seen):
                made.mkdir(mode=0o1777, exist_ok=True)
                made.chmod(0o1777)
            binds.append((disk, seen))
        return [*(_OWN_RUN if self._spec.configless else ()), *build_private_mount_command(binds)]

    @functools.cached_property
    def _can_mount_hosts_file(self) -> bool:
        """Return whether instances can have an /etc/hosts of their own: not without root, and not
        in a container without CAP_SYS_ADMIN.
        """
        if os.geteuid() != 0:
            return False
        command = [*build_private_mount_command([(self._spec.layout.hosts, ETC_HOSTS)]), "true"]
        return subprocess.run(command, capture_output=True, timeout=10, check=False).returncode == 0

    def _wait_for_boot(self, machine: EmulatedMachine, init: subprocess.Popen[bytes]) -> None:
        """Follow the init's own account of the boot. Raises LifecycleScriptError."""
        timer = threading.Timer(BOOT_TIMEOUT_S, init.kill)
        timer.start()
        try:
            assert init.stdout is not None
            for line in init.stdout:
                message = json.loads(line)
                if "ready" in message:
                    return
                if "failed" in message:
                    log = message["log"] or self._spec.layout.logs
                    raise LifecycleScriptError(message["failed"], f"Read its log: {log}")
        finally:
            timer.cancel()
        log = self._spec.layout.of_node(machine.node) / "init.log"
        raise LifecycleScriptError(
            f"node {machine.node} of the sandbox was stopped while it booted",
            f"Read its log: {log}",
        )


def build_private_mount_command(binds: Sequence[tuple[Path, Path]]) -> list[str]:
    """Return what runs a command in a separate mount namespace, with these (source, target)
    bound in it; empty where there are none.
    """
    if not binds:
        return []
    command = ["unshare", "--mount"]
    for source, target in binds:
        script = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'
        command += ["sh", "-c", script, "sh", str(source), str(target)]
    return command


def has_instance_metadata_service(spec: SandboxSpec, machine: EmulatedMachine) -> bool:
    """Return whether an instance's agent's settings name its metadata service: on loopback only."""
    return machine.spot and not spec.netns
