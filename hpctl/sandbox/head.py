"""The head node's services: munged, slurmctld and, where asked for, the daemon.

Two heads on one machine: each slurmctld and daemon has its own host name (`unshare --uts`), an
/etc/hosts that knows it, and the head's address; the files lie in one place, as on the file system
that real head nodes share. They share a database too: MariaDB or PostgreSQL, whichever is here.
"""

import os
import secrets
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct

from hpctl.sandbox import bootplan, clocks, slurmconf
from hpctl.sandbox.health_program import install_health_check_program
from hpctl.sandbox.logs import read_last_log_lines
from hpctl.sandbox.packages import SandboxPrograms
from hpctl.sandbox.proctree import is_port_listening
from hpctl.sandbox.slurmconf import ClusterNodeMembership
from hpctl.sandbox.spec import SandboxSpec
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.policy import AcceptanceTestPolicy

INSTALL_S = 180.0
_PLACES = ["/usr/sbin", *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)]


class HeadDatabaseServer(Struct, frozen=True):
    """A server of our own: how its files are made, how it is run, and how it is reached."""

    install: list[str]
    command: list[str]
    socket: Path
    url: str


def choose_database(spec: SandboxSpec) -> HeadDatabaseServer:
    """Return the database that the sandbox names, or that is installed with Python's driver. Raises
    HpctlError."""
    home, named = spec.layout.database, spec.database
    data = home / "data"
    if (
        named in ("", "mariadb")
        and find_spec("pymysql")
        and (server := _find_database_program("mariadbd"))
    ):
        sock, own = home / "sql.sock", ["--no-defaults", f"--datadir={data}"]
        files = [f"--socket={sock}", f"--pid-file={home}/sql.pid", "--skip-networking"]
        return HeadDatabaseServer(
            [
                _find_database_program("mariadb-install-db"),
                *own,
                "--auth-root-authentication-method=normal",
            ],
            [server, *own, *files, "--innodb-buffer-pool-size=16M"],
            sock,
            f"mariadb://root@localhost/test?unix_socket={sock}",
        )
    if (
        named in ("", "postgresql")
        and find_spec("psycopg")
        and (server := _find_database_program("postgres"))
    ):
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={home}"]
        return HeadDatabaseServer(
            [
                _find_database_program("initdb"),
                f"--pgdata={data}",
                "--auth=trust",
                "--username=hpctl",
            ],
            [server, "-D", str(data), *options],
            home / ".s.PGSQL.5432",
            f"postgresql://hpctl@/postgres?host={home}",
        )
    named = named or "mariadb"
    packages = {"mariadb": "mariadb-server-core mariadb-client-core"}.get(named, named)
    raise HpctlError(
        f"two head nodes need a shared database, but no {named} server with its Python driver is "
        "installed",
        f"Install them: sudo apt-get install -y --no-install-recommends {packages}; pip install "
        f"'hpctl[{named}]'",
    )


def _find_database_program(name: str) -> str:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])) or ""


def wrap_command_to_run_as_nobody(command: list[str]) -> list[str]:
    """Neither server runs as root."""
    drop = ["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"]
    return ["setpriv", *drop, "--", *command]


def create_database_files(spec: SandboxSpec) -> None:
    """Make the server's files. Raises HpctlError."""
    home = spec.layout.database
    home.mkdir()
    shutil.chown(home, "nobody", "nogroup")
    command = wrap_command_to_run_as_nobody(choose_database(spec).install)
    env = {**os.environ, "TMPDIR": str(home), "HOME": str(home), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_S, check=False, cwd=home, env=env
    )
    if done.returncode != 0:
        raise HpctlError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-500:]}")


START_TIMEOUT_S = 30.0


class HeadServices:
    """Starts, stops and restarts the head node's services, each by its name."""

    def __init__(self, spec: SandboxSpec, programs: SandboxPrograms) -> None:
        self._spec = spec
        self._programs = programs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawn")

    def start(self, service: str) -> int:
        """Start `munged`, `database`, `slurmctld`, `daemon`, or the second head's `slurmctld-2` or
        `daemon-2`; its pid. Returns when it serves."""
        if self.pid(service):
            raise HpctlError(
                f"the sandbox's {service} is already running",
                f"Its process id is {self.pid(service)}.",
            )
        command, serves = self._service(service)
        log = self._log(service)
        process = self._spawner.submit(
            self._spawn_service_process, command, log, self._make_daemon_clock_environment(service)
        ).result()
        self._running[service] = process
        deadline = time.monotonic() + START_TIMEOUT_S
        while not serves():
            if process.poll() is not None or time.monotonic() > deadline:
                raise HpctlError(
                    f"the sandbox's {service} did not start: {read_last_log_lines(log)}",
                    f"Read its log: {log}",
                )
            time.sleep(0.02)
        return process.pid

    def find_ended_service_error(self) -> HpctlError | None:
        """Say which service that was started has ended, and why; None where all run."""
        for service, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                log = self._log(service)
                last_lines = read_last_log_lines(log)
                message = f"the sandbox's {service} ended with exit code {code}: {last_lines}"
                return HpctlError(message, f"Read its log: {log}")
        return None

    def _log(self, service: str) -> Path:
        return self._spec.layout.logs / f"{service}.out"

    def signal(self, service: str, number: signal.Signals) -> None:
        """Send a signal; with SIGKILL or SIGTERM, wait for the end."""
        process = self._running.get(service)
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            process.wait(START_TIMEOUT_S)

    def pid(self, service: str) -> int:
        """Return the pid of a service; 0 when it does not run."""
        process = self._running.get(service)
        return process.pid if process is not None and process.poll() is None else 0

    def pids(self) -> dict[str, int]:
        """Return every service that was ever started, with its pid or 0."""
        return {service: self.pid(service) for service in self._running}

    def _service(self, service: str) -> tuple[list[str], Callable[[], bool]]:
        spec, layout = self._spec, self._spec.layout
        if service == "munged":
            layout.munge_socket.unlink(missing_ok=True)
            command = bootplan.make_munged_command(
                self._programs, spec, layout.munge_socket, layout.state / "head", spec.head_address
            )
            return command, layout.munge_socket.exists
        if service == "database":
            server = choose_database(spec)
            return wrap_command_to_run_as_nobody(server.command), server.socket.exists
        name, _, number = service.partition("-")
        head = int(number or 1)
        if name == "slurmctld" and head <= spec.heads:
            log = str(layout.logs / f"{service}.log")
            command = [self._programs["slurmctld"], "-D", "-f", str(layout.slurm_conf), "-L", log]
            return self._wrap_command_in_head_namespace(
                head, command
            ), lambda: self._is_head_port_open(head, spec.ports.slurmctld)
        if name == "daemon" and head <= spec.heads:
            config = ["--config", str(layout.of_head(head)[0])]
            command = [sys.executable, *SAFE_PATH, "hpctl", "daemon", "run", *config]
            return self._wrap_command_in_head_namespace(
                head, command
            ), lambda: self._is_head_port_open(head, spec.ports.intake)
        raise HpctlError(
            f"the sandbox's head node has no service {service}",
            "Choose one of: munged, slurmctld, daemon.",
        )

    def _wrap_command_in_head_namespace(self, head: int, command: list[str]) -> list[str]:
        """Return the command on one of several heads. A slurmctld ends the pid in its pid file."""
        if self._spec.heads == 1:
            return command
        hosts = shlex.quote(str(self._spec.layout.hosts))
        run = shlex.quote(str(self._spec.layout.state / "run"))
        own = f"hostname head-{head} && mount --bind {hosts} {slurmconf.ETC_HOSTS}"
        script = f'{own} && mount -t tmpfs none {run} && exec "$@"'
        return ["unshare", "--uts", "--mount", "sh", "-c", script, "sh", *command]

    def _is_head_port_open(self, head: int, port: int) -> bool:
        if self._spec.heads == 1:
            return is_port_listening(port)
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex((self._spec.head_addresses[head - 1], port)) == 0

    def _make_daemon_clock_environment(self, service: str) -> dict[str, str]:
        """Return the environment in which the daemon goes by the head node's clock."""
        if not self._spec.clock_library or not service.startswith("daemon"):
            return {}
        return clocks.make_clock_environment(
            self._spec.clock_library, self._spec.layout.get_clock_offset_path("")
        )

    def _spawn_service_process(
        self, command: list[str], log: Path, clock: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        env = {
            **bootplan.make_sandbox_process_environment(self._spec),
            **bootplan.make_sandbox_user_environment(self._spec),
            **clock,
        }
        with log.open("ab") as sink:
            return subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=env,
                cwd="/",
                start_new_session=True,
            )


def write_head_node_files(spec: SandboxSpec, programs: SandboxPrograms) -> None:
    """Write all that the head node needs before anything starts: key, devices, slurm.conf."""
    layout = spec.layout
    etc = layout.slurm_conf.parent
    for directory in (
        etc,
        layout.logs,
        *(layout.state / n for n in ("head", "ctld", "run", "spool")),
    ):
        directory.mkdir(parents=True, exist_ok=True)
    if spec.clock_library:
        clocks.set_clock_offset(layout.get_clock_offset_path(""), 0)
    layout.munge_key.touch(mode=0o600)
    layout.munge_key.write_bytes(secrets.token_bytes(128))
    devices = make_gpu_device_files(layout.state / "dev")
    slots = ClusterNodeMembership(spec, programs)
    slurmconf.write_slurm_config_files(
        etc,
        {
            "slurm.conf": slots.text(),
            layout.hosts.name: slots.hosts(),
            "gres.conf": slurmconf.render_gres_conf(devices),
            "cgroup.conf": slurmconf.render_cgroup_conf(programs),
            slurmconf.make_epilog_slurmctld_path(
                spec
            ).name: slurmconf.render_epilog_slurmctld_script(spec),
        },
    )
    install_health_check_program(spec)
    if spec.heads > 1:
        create_database_files(spec)
    for head in range(1, spec.heads + 1):
        config = yaml.safe_dump(make_sandbox_daemon_config(spec, head), sort_keys=False)
        layout.of_head(head)[0].write_text(config)


def make_gpu_device_files(directory: Path) -> list[Path]:
    """Eight files that stand for GPUs: devices (each a /dev/null), or where we may not make
    those plain files, which Slurm counts as well. (A bare Count is dropped for gpu.)
    """
    directory.mkdir(exist_ok=True)
    made = [directory / f"nvidia{number}" for number in range(slurmconf.GPUS)]
    for path in made:
        if path.exists():
            continue
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        except PermissionError:
            path.touch()
    return made


def make_sandbox_daemon_config(spec: SandboxSpec, head: int = 1) -> dict[str, Any]:
    """hpctl.yaml for a head node of this sandbox, with the caller's keys merged over it."""
    layout = spec.layout
    cluster: dict[str, Any] = {"provider": "none"}
    if spec.emulator:
        cluster = {
            "provider": "sagemaker",
            "name": spec.cluster_name if spec.empty else spec.cluster,
            "region": "us-east-1",
            "endpoint_url": f"http://127.0.0.1:{spec.ports.emulator}",
        }
    ours: dict[str, Any] = {
        "mode": spec.mode,
        "state_dir": str(layout.of_head(head)[1]),
        "kill_switch": str(layout.state / "STOP"),
        "cluster": cluster,
        "slurm": {
            "bin": f"{spec.prefix}/bin" if spec.prefix else None,
            "conf": str(layout.slurm_conf),
            "adapter": spec.adapter,
        },
        "intake": {
            "listen": spec.head_intake_urls[head - 1].removeprefix("http://"),
            "munge_socket": str(layout.munge_socket),
            "allowed_uids": [os.getuid()],
        },
        "metrics": {"agent_port": spec.ports.metrics},
        "acceptance": {"command": make_sandbox_acceptance_command(spec)},
    }
    if spec.heads > 1:
        ours |= {"database_url": choose_database(spec).url, "heads": spec.head_intake_urls}
        ours["intake"]["advertise"] = ours["intake"]["listen"]
    return _merge_config(ours, spec.config)


def make_sandbox_acceptance_command(spec: SandboxSpec) -> str:
    """Return `acceptance.command` of a sandbox, where each node's agent has its own directory.

    slurmd sets SLURMD_NODENAME in the job that runs it.
    """
    nodes = shlex.quote(str(spec.layout.state / "nodes"))
    python = shlex.join([sys.executable, *SAFE_PATH])
    spool = f"{nodes}/$SLURMD_NODENAME/agent"
    module = AcceptanceTestPolicy().command.partition(" -m ")[2]
    return f"env HPCTL_AGENT_SPOOL={spool} {python} {module}"


def _merge_config(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            value = _merge_config(below, value)
        result[key] = value
    return result
