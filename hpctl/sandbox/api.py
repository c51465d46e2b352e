"""Sandboxes from Python: what the CLI, the tests and the demo use, and how they ask the supervisor.

The supervisor's control socket takes one JSON object a line each way, one request a connection.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from hpctl.sandbox import clocks, head, packages
from hpctl.sandbox import spec as specs
from hpctl.sandbox.bootplan import make_sandbox_process_environment, make_sandbox_user_environment
from hpctl.sandbox.proctree import kill_leftover_processes, read_process_start_time
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable

Handler = Callable[[dict[str, Any]], dict[str, Any]]


class ControlServer:
    """Serves requests on a unix socket, each in a thread. HpctlErrors travel to the caller."""

    def __init__(self, path: Path, handler: Handler) -> None:
        class ControlConnection(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                line = self.rfile.readline()
                if line:
                    self.wfile.write(
                        json.dumps(_answer_control_request_line(handler, line)).encode() + b"\n"
                    )

        self._server = socketserver.ThreadingUnixStreamServer(str(path), ControlConnection)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True, name="control").start()


def _answer_control_request_line(handler: Handler, line: bytes) -> dict[str, Any]:
    try:
        return {"ok": handler(json.loads(line))}
    except HpctlError as error:
        return {"error": str(error), "hint": error.hint}
    except (TypeError, KeyError, ValueError) as error:
        return {"error": f"bad request: {error}", "hint": ""}


def send_sandbox_control_request(
    path: Path, request: dict[str, Any], timeout: float = 60.0
) -> dict[str, Any]:
    """Send one request. Raises Unavailable where no process answers, HpctlError on a refusal."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout)
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
    except OSError as error:
        raise ServiceUnavailable(
            f"the sandbox at {path.parent} does not answer: {error}",
            "Run `hpctl sandbox down` to end its remaining processes, then `hpctl sandbox up`.",
        ) from error
    if not line:
        raise ServiceUnavailable(
            f"the sandbox at {path.parent} ended before it answered",
            "Start it again: hpctl sandbox up",
        )
    answer: dict[str, Any] = json.loads(line)
    if "error" in answer:
        raise HpctlError(answer["error"], answer["hint"])
    result: dict[str, Any] = answer["ok"]
    return result


UP_TIMEOUT_S = 240.0

Progress = Callable[[str], None]


class Sandbox:
    """One sandbox, by its name and state directory.

    As a context manager it is up inside the block, and gone after it or with this process:
    the keeper holds our end of a pipe. `settings` are the fields of hpctl.sandbox.spec.SandboxSpec.
    """

    def __init__(
        self, name: str = "default", *, state_dir: Path | str | None = None, **settings: Any
    ) -> None:
        self.name = name
        self.state_dir = Path(state_dir) if state_dir else specs.choose_state_directory(name)
        self._settings = settings
        self._keeper: subprocess.Popen[bytes] | None = None

    def up(self, progress: Progress = lambda _line: None, *, detach: bool = False) -> Sandbox:
        """Start it and return when every node is idle.

        With `detach` it outlives this process; without, it ends with it. Raises HpctlError, and
        then nothing is left running; the logs stay until `down`.
        """
        wanted = self._spec()
        packages.find_sandbox_programs(wanted.prefix, netns=wanted.netns or wanted.heads > 1)
        if (wanted.netns or wanted.disks or wanted.heads > 1) and os.geteuid() != 0:
            raise HpctlError(
                "the options --netns, --disks and --heads 2 need root",
                "Run the command with sudo, or remove the options.",
            )
        if wanted.heads > 1:
            head.choose_database(wanted)
        if self.running:
            raise HpctlError(
                f"cannot start sandbox {self.name}: it is already running",
                f"To end it, run: hpctl sandbox down --name {self.name}",
            )
        self.down()
        specs.make_state_directory(self.state_dir)
        wanted.layout.logs.mkdir()
        specs.save_sandbox_spec(wanted)
        try:
            self._start_supervisor(wanted)
            self._wait_until_ready(wanted, progress)
        except BaseException:
            self._stop_supervisor_process()
            raise
        if detach:
            self._detach_supervisor_process()
        return self

    def down(self) -> None:
        """End every process of it and remove its state directory. Idempotent."""
        known = specs.load_sandbox_spec(self.state_dir)
        if known is not None:
            with contextlib.suppress(HpctlError):
                send_sandbox_control_request(known.layout.control, {"op": "down"}, timeout=10)
            self._stop_supervisor_process()
            self._await_supervisor_exit(known)
            left = kill_leftover_processes(known.id, known.cluster)
            if left:
                raise HpctlError(
                    f"cannot end these processes of the sandbox: {left}",
                    f"End them with kill -9 PID; the sandbox's files are in {self.state_dir}",
                )
        shutil.rmtree(self.state_dir, ignore_errors=True)
        if self.state_dir.parent == specs.choose_user_sandbox_directory():
            with contextlib.suppress(OSError):  # other sandboxes may live there
                self.state_dir.parent.rmdir()

    def __enter__(self) -> Sandbox:
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def running(self) -> bool:
        """Return whether its keeper lives."""
        return bool(self._read_supervisor_pid())

    @property
    def spec(self) -> specs.SandboxSpec:
        """Return what it was started as. Raises Unavailable where there is no such sandbox."""
        known = specs.load_sandbox_spec(self.state_dir)
        if known is None:
            raise ServiceUnavailable(
                f"sandbox {self.name} does not run: there is none at {self.state_dir}",
                f"To start it, run: hpctl sandbox up --name {self.name}",
            )
        return known

    @property
    def nodes(self) -> list[str]:
        """Return the Slurm names of its worker nodes."""
        return self.spec.names

    @property
    def env(self) -> dict[str, str]:
        """Return the environment that puts a command on this cluster, over our own."""
        return {**os.environ, **make_sandbox_user_environment(self.spec)}

    @property
    def exports(self) -> dict[str, str]:
        """Only what `env` adds to our own environment."""
        return dict(make_sandbox_user_environment(self.spec))

    @property
    def config_path(self) -> Path:
        """Return the daemon's configuration file."""
        return self.spec.layout.config

    @property
    def endpoint_url(self) -> str:
        """Return where the emulated SageMaker API is (with netns: inside the head's namespace)."""
        return f"http://127.0.0.1:{self.spec.ports.emulator}"

    @property
    def aws(self) -> dict[str, Any]:
        """Return what moto was filled with: vpc, subnets (with their zones), security_group,
        execution_role, lifecycle (the S3 prefix), fsx_lustre.
        """
        filled: dict[str, Any] = json.loads(self.spec.layout.aws.read_text())
        return filled

    @property
    def cluster_file(self) -> Path:
        """Return a cluster.yaml for `hpctl cluster create`: a controller, and half of the
        places."""
        return self.spec.layout.cluster_file

    @property
    def munge_socket(self) -> Path:
        """Return the head node's munged."""
        return self.spec.layout.munge_socket

    def node_dir(self, node: str) -> Path:
        """Return a node's own files: boot_id, kmsg, munge.sock, lifecycle.log."""
        return self.spec.layout.of_node(node)

    def log_files(self) -> list[Path]:
        """Return the logs of all parts, those of the instances' own disks included."""
        own = (self.state_dir / "nodes").glob("*/*.log")
        return sorted(self.spec.layout.logs.iterdir()) + sorted(own)

    def status(self) -> dict[str, Any]:
        """Return what runs. Raises Unavailable."""
        return self._ask({"op": "status"})

    def calls(self, operation: str = "") -> list[dict[str, Any]]:
        """Return the calls that the emulated API has got, of one operation where it is named."""
        url = f"{self.endpoint_url}/_emulator/calls/{operation}".rstrip("/")
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own, loopback
            return list(json.load(answer)["calls"])

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs `arguments` where the head node is."""
        if not self.spec.netns:
            return list(arguments)
        pid = self.status()["supervisor_pid"]
        return ["nsenter", f"--net=/proc/{pid}/ns/net", "--", *arguments]

    def run(
        self, arguments: Sequence[str], *, timeout: float = 60.0, check: bool = True, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the head node, capturing text. With `check`, HpctlError on failure."""
        done = subprocess.run(
            self.command(arguments),
            env={**self.env, "LC_ALL": "C.UTF-8", **more.pop("env", {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            **more,
        )
        if check and done.returncode != 0:
            output = (done.stderr or done.stdout).strip()
            raise HpctlError(
                f"the command `{' '.join(arguments)}` in the sandbox failed with exit code "
                f"{done.returncode}: {output}"
            )
        return done

    def scontrol(self, *arguments: str) -> str:
        """Run scontrol; what it printed."""
        return self.run(["scontrol", *arguments]).stdout

    def inject(self, node: str, kind: str, **how: Any) -> str:
        """Break a node (faults.NODE_KINDS); a line that says what was done."""
        return str(self._ask({"op": "inject", "node": node, "kind": kind, **how})["done"])

    def inject_api(self, kind: str, **how: Any) -> str:
        """Break the emulated service; `clear` ends that. A line that says what was done."""
        return str(self._ask({"op": "inject-api", "kind": kind, "how": how})["done"])

    def set_clock(self, host: str, seconds: int) -> None:
        """Set the clock of a node's agent, or with an empty name of the daemon, that many seconds
        forward or back of the machine's. It takes effect within a second."""
        clocks.set_clock_offset(self.spec.layout.get_clock_offset_path(host), seconds)

    def start_daemon(self) -> int:
        """Start `hpctl daemon run`; its pid, once its intake listens."""
        return self.start_service("daemon")

    def start_service(self, name: str) -> int:
        """Start `slurmctld`, `daemon`, or the second head's `slurmctld-2`, `daemon-2`; its pid."""
        return self._start_or_signal_service(name, "start")

    def set_mode(self, mode: str) -> None:
        """Write the mode into the daemon's file, and have a daemon that runs read that."""
        settings = yaml.safe_load(self.config_path.read_text())
        self.config_path.write_text(yaml.safe_dump({**settings, "mode": mode}, sort_keys=False))
        if self.status()["services"].get("daemon"):
            self.signal_service("daemon", "SIGHUP")

    def kill_daemon(self) -> None:
        """SIGKILL the daemon."""
        self._start_or_signal_service("daemon", "SIGKILL")

    def start_slurmctld(self) -> int:
        """Start slurmctld again; its pid, once it listens."""
        return self._start_or_signal_service("slurmctld", "start")

    def kill_slurmctld(self) -> None:
        """SIGKILL slurmctld."""
        self._start_or_signal_service("slurmctld", "SIGKILL")

    def signal_service(self, name: str, signal_name: str) -> None:
        """Send `SIGSTOP`, `SIGCONT`, ... to munged, slurmctld or daemon of the head node."""
        self._start_or_signal_service(name, signal_name)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return send_sandbox_control_request(self.spec.layout.control, request)

    def _start_or_signal_service(self, name: str, do: str) -> int:
        return int(self._ask({"op": "service", "name": name, "do": do})["pid"])

    def _spec(self) -> specs.SandboxSpec:
        settings = {
            "name": self.name,
            "id": specs.make_sandbox_id(self.name),
            "state": str(self.state_dir),
            "nodes": 8,
            # Known to who may read spec.json: root may start a sandbox on a machine that others
            # use, because they can put nothing into its buckets, and order nothing.
            "access_key": f"SANDBOX{secrets.token_hex(16).upper()}",
            "secret_key": secrets.token_hex(20),
            "adapter": os.environ.get(specs.ADAPTER, "auto"),
            **self._settings,
        }
        if not 1 <= settings["nodes"] <= specs.MAX_NODES:
            raise HpctlError(
                (f"a sandbox has 1 to {specs.MAX_NODES} nodes, not {settings['nodes']}"),
                "Give another number of nodes.",
            )
        if not 1 <= settings.get("groups", 1) <= settings["nodes"]:
            raise HpctlError(
                "a sandbox needs at least one worker group, with at least one node in each group",
                "Give each worker group at least one node.",
            )
        if settings.get("empty"):
            settings = {**settings, "emulator": True, "moto": True}
        places = max(settings["nodes"], settings.get("slots", 0))
        if places > specs.MAX_NODES:
            raise HpctlError(
                (f"a sandbox has at most {specs.MAX_NODES} slots, not {places}"),
                "Give a smaller --slots or fewer nodes.",
            )
        settings["ports"] = specs.find_free_sandbox_ports(places)
        return msgspec.convert(settings, specs.SandboxSpec)

    def _start_supervisor(self, wanted: specs.SandboxSpec) -> None:
        python = [sys.executable, *SAFE_PATH]
        state = str(self.state_dir)
        supervisor = [*python, "hpctl.sandbox.supervisor", state]
        if wanted.netns:
            supervisor = ["unshare", "--net", "--", *supervisor]
        log = wanted.layout.logs / "supervisor.log"
        with log.open("ab") as sink:
            self._keeper = subprocess.Popen(
                [*python, "hpctl.sandbox.keeper", state, *supervisor],
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=sink,
                env=make_sandbox_process_environment(wanted),
                cwd="/",
                start_new_session=True,
            )
        pid = self._keeper.pid
        (self.state_dir / "keeper.pid").write_text(f"{pid} {read_process_start_time(pid)}")

    def _wait_until_ready(self, wanted: specs.SandboxSpec, progress: Progress) -> None:
        """Pass the supervisor's account on until it is ready. Raises HpctlError."""
        assert self._keeper is not None
        deadline = time.monotonic() + UP_TIMEOUT_S
        seen = 0
        while True:
            over = self._keeper.poll() is not None or time.monotonic() > deadline
            lines = list(_read_complete_json_lines(wanted.layout.progress))
            for line in lines[seen:]:
                if "failed" in line:
                    raise HpctlError(
                        f"sandbox {self.name} did not start: {line['what']}", line["hint"]
                    )
                if "ready" in line:
                    return
                progress(line["what"])
            seen = len(lines)
            if over:
                log = wanted.layout.logs / "supervisor.log"
                output = log.read_text().strip().splitlines() or ["(nothing)"]
                raise HpctlError(
                    f"the sandbox's supervisor process ended: {output[-1]}", f"Read its log: {log}"
                )
            time.sleep(0.05)

    def _detach_supervisor_process(self) -> None:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(b"detach\n")
        self._keeper.stdin.close()
        # It is no child of this process to wait for now; init collects it when we are gone.
        self._keeper.returncode = 0
        self._keeper = None

    def _read_supervisor_pid(self) -> int:
        """Return the keeper's pid if it lives and is the one we started."""
        try:
            pid, started = (self.state_dir / "keeper.pid").read_text().split()
        except (FileNotFoundError, ValueError):
            return 0
        return int(pid) if read_process_start_time(int(pid)) == started else 0

    def _stop_supervisor_process(self) -> None:
        if self._keeper is None:
            return
        assert self._keeper.stdin is not None
        self._keeper.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._keeper.wait(30)
        self._keeper = None

    def _await_supervisor_exit(self, known: specs.SandboxSpec) -> None:
        """Wait for the keeper's end; past that, kill it: the stragglers' sweep does its work."""
        deadline = time.monotonic() + 20
        while pid := self._read_supervisor_pid():
            if time.monotonic() > deadline:
                os.kill(pid, 9)
            time.sleep(0.02)


def _read_complete_json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the whole lines of a JSON-lines file that may still grow."""
    if not path.exists():
        return
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)
