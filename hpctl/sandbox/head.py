"""The head node's services: munged, slurmctld and, where asked for, the daemon."""

import os
import secrets
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from hpctl.core.compat import SAFE_PATH
from hpctl.errors import HpctlError
from hpctl.sandbox import bootplan, slurmconf
from hpctl.sandbox.packages import Programs
from hpctl.sandbox.proctree import listening
from hpctl.sandbox.slurmconf import Slots
from hpctl.sandbox.spec import Spec

START_TIMEOUT_S = 30.0


class Head:
    """Starts, stops and restarts the head node's services, each by its name."""

    def __init__(self, spec: Spec, programs: Programs) -> None:
        self._spec = spec
        self._programs = programs
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawn")

    def start(self, service: str) -> int:
        """Start `munged`, `slurmctld` or `daemon`; its pid. Returns when it serves."""
        if self.pid(service):
            raise HpctlError(f"{service} runs already", f"Its pid is {self.pid(service)}.")
        command, serves = self._service(service)
        log = self._spec.layout.logs / f"{service}.out"
        process = self._spawner.submit(self._spawn, command, log).result()
        self._running[service] = process
        deadline = time.monotonic() + START_TIMEOUT_S
        while not serves():
            if process.poll() is not None or time.monotonic() > deadline:
                raise HpctlError(
                    f"{service} did not start: {_last_words(log)}",
                    f"Its logs are in {self._spec.layout.logs}.",
                )
            time.sleep(0.02)
        return process.pid

    def signal(self, service: str, number: signal.Signals) -> None:
        """Send a signal; with SIGKILL or SIGTERM, wait for the end."""
        process = self._running.get(service)
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            process.wait(START_TIMEOUT_S)

    def pid(self, service: str) -> int:
        """The pid of a service; 0 when it does not run."""
        process = self._running.get(service)
        return process.pid if process is not None and process.poll() is None else 0

    def pids(self) -> dict[str, int]:
        """Every service that was ever started, with its pid or 0."""
        return {service: self.pid(service) for service in self._running}

    def _service(self, service: str) -> tuple[list[str], Callable[[], bool]]:
        spec, layout = self._spec, self._spec.layout
        if service == "munged":
            layout.munge_socket.unlink(missing_ok=True)
            command = bootplan.munged(
                self._programs, spec, layout.munge_socket, layout.state / "head", spec.head_address
            )
            return command, layout.munge_socket.exists
        if service == "slurmctld":
            command = [self._programs["slurmctld"], "-D", "-f", str(layout.slurm_conf)]
            return command, lambda: listening(spec.ports.slurmctld)
        if service == "daemon":
            config = ["--config", str(layout.config)]
            command = [sys.executable, *SAFE_PATH, "hpctl", "daemon", "run", *config]
            return command, lambda: listening(spec.ports.intake)
        raise HpctlError(f"the head node has no {service}", "It has munged, slurmctld and daemon.")

    def _spawn(self, command: list[str], log: Path) -> subprocess.Popen[bytes]:
        env = {**bootplan.child_env(self._spec), **bootplan.environment(self._spec)}
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


def _last_words(log: Path) -> str:
    """The last two lines that a service wrote: the second often only says that it gave up."""
    for path in (log, log.with_suffix(".log")):
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        if last := [line.rpartition("] ")[2] for line in lines if line.strip()]:
            return " / ".join(last[-2:])
    return "(it wrote nothing)"


def prepare(spec: Spec, programs: Programs) -> None:
    """Write all that the head node needs before anything starts: key, devices, slurm.conf."""
    layout = spec.layout
    etc = layout.slurm_conf.parent
    for directory in (etc, layout.logs, *(layout.state / n for n in ("head", "ctld", "spool"))):
        directory.mkdir(parents=True, exist_ok=True)
    layout.munge_key.touch(mode=0o600)
    layout.munge_key.write_bytes(secrets.token_bytes(128))
    devices = make_devices(layout.state / "dev")
    slurmconf.write(
        etc,
        {
            "slurm.conf": Slots(spec, programs).text(),
            "gres.conf": slurmconf.render_gres(devices),
            "cgroup.conf": slurmconf.render_cgroup(programs),
            slurmconf.own_epilog(spec).name: slurmconf.render_epilog(spec),
        },
    )
    layout.config.write_text(yaml.safe_dump(daemon_config(spec), sort_keys=False))


def make_devices(directory: Path) -> list[Path]:
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


def daemon_config(spec: Spec) -> dict[str, Any]:
    """hpctl.yaml for this sandbox, with the caller's keys merged over it."""
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
        "state_dir": str(layout.daemon),
        "kill_switch": str(layout.state / "STOP"),
        "cluster": cluster,
        "slurm": {
            "bin": f"{spec.prefix}/bin" if spec.prefix else None,
            "conf": str(layout.slurm_conf),
            "adapter": spec.adapter,
        },
        "intake": {
            "listen": f"{spec.head_address}:{spec.ports.intake}",
            "munge_socket": str(layout.munge_socket),
            "allowed_uids": [os.getuid()],
        },
    }
    return _merged(ours, spec.config)


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in over.items():
        below = result.get(key)
        if isinstance(value, dict) and isinstance(below, dict):
            value = _merged(below, value)
        result[key] = value
    return result
