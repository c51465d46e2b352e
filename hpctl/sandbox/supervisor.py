"""The one process that runs a sandbox: head services, instances, the emulated service.

    python -m hpctl.sandbox.supervisor STATE

Started by the keeper, in whose death it ends. It answers on the control socket, and writes to
progress.jsonl what it is doing, until the line `ready` or `failed`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpctl.sandbox import faults, instances, packages
from hpctl.sandbox.api import ControlServer
from hpctl.sandbox.bootplan import make_sandbox_process_environment
from hpctl.sandbox.faults import NodeFaultInjector
from hpctl.sandbox.head import HeadServices, write_head_node_files
from hpctl.sandbox.instances import LocalMachineBackend
from hpctl.sandbox.machines import LifecycleScriptError, make_initial_machines
from hpctl.sandbox.proctree import become_subreaper, list_zombie_children, set_parent_death_signal
from hpctl.sandbox.spec import SandboxSpec, load_sandbox_spec
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import NodeName

if TYPE_CHECKING:
    from hpctl.sandbox.hyperpod import SandboxHyperPodEmulator
    from hpctl.sandbox.other_aws import MotoServer

HEARD_TIMEOUT_S = 60.0
IDLE_TIMEOUT_S = 60.0


class SandboxSupervisor:
    """A running sandbox."""

    def __init__(self, spec: SandboxSpec) -> None:
        self.spec = spec
        self.programs = packages.find_sandbox_programs(
            spec.prefix, netns=spec.netns or spec.heads > 1
        )
        self.head = HeadServices(spec, self.programs)
        self.machines = LocalMachineBackend(spec, self.programs)
        self.faults = NodeFaultInjector(spec, self.programs, self.machines)
        self.hyperpod: SandboxHyperPodEmulator | None = None
        self.aws: MotoServer | None = None
        self.ended = threading.Event()
        self.started = time.time()

    def up(self) -> None:
        """Start everything, saying so in progress.jsonl. Raises HpctlError."""
        began = time.monotonic()
        if self.spec.netns:
            instances.set_up_head_namespace(self.programs)
        write_head_node_files(self.spec, self.programs)
        release = self.programs.release
        self.say(f"Slurm {release}: munged and slurmctld")
        self.head.start("munged")
        if self.spec.heads > 1:
            self.head.start("database")
        for service in self.list_head_service_names("slurmctld"):
            self.head.start(service)
        ControlServer(self.spec.layout.control, self.answer)
        if self.spec.moto:
            from hpctl.sandbox.other_aws import MotoServer

            self.say("moto's S3, IAM, EC2 and others")
            self.aws = MotoServer(self.spec)
            self.aws.start()
        self.say("HyperPod's API" if self.spec.empty else f"{self.spec.nodes} instances")
        # The daemon comes up at the same time, or agents would find none and wait to try again.
        with ThreadPoolExecutor(max_workers=1) as beside:
            daemon = beside.submit(self.start_hpctl_daemons) if self.spec.daemon else None
            self.boot_initial_instances()
            if not self.spec.empty:
                self.wait_for_idle_nodes()
            if daemon is not None:
                self.say("the daemon")
                daemon.result()
        if daemon is not None and self.spec.agents and not self.spec.empty:
            self.wait_for_agent_reports()
        self.start_hyperpod_agents()
        self.say("ready", ready=True, seconds=round(time.monotonic() - began, 2))

    def list_head_service_names(self, service: str) -> list[str]:
        """Return the service's names on all head nodes."""
        return [service, f"{service}-2"][: self.spec.heads]

    def start_hpctl_daemons(self) -> None:
        """One after the other: the first one leads."""
        for service in self.list_head_service_names("daemon"):
            self.head.start(service)

    def start_hyperpod_agents(self) -> None:
        """HyperPod's own, which act in Slurm."""
        looks: list[tuple[Callable[[], None], float]] = []
        if self.spec.hma:
            looks.append(
                (
                    faults.HealthMonitoringAgent(self.spec, self.programs, self.machines).look,
                    faults.LOOK_S,
                )
            )
        if self.hyperpod is not None and self.spec.node_recovery == "Automatic":
            pod = self.hyperpod
            service = faults.EmulatedAutomaticNodeRecovery(
                self.spec, self.programs, pod.start_automatic_node_recovery, pod.is_settled
            )
            looks.append((service.look, faults.SERVICE_LOOK_S))
        for look, every_s in looks:
            work = partial(faults.run_callback_periodically, look, every_s, self.ended)
            threading.Thread(target=work, name="hma", daemon=True).start()

    def say(self, what: str, **more: Any) -> None:
        """Add a line to progress.jsonl."""
        with self.spec.layout.progress.open("a") as log:
            log.write(json.dumps({"at": time.time(), "what": what, **more}) + "\n")

    def boot_initial_instances(self) -> None:
        """Boot the first instances, a few at once: the emulated service, or we where none is."""
        if self.spec.emulator:
            # Not imported without it: botocore costs every sandbox half a second.
            from hpctl.sandbox.hyperpod import SandboxHyperPodEmulator

            self.hyperpod = SandboxHyperPodEmulator(self.spec, self.machines, self.aws)
            self.hyperpod.start()
            return
        with ThreadPoolExecutor(max_workers=4) as pool:
            machines = make_initial_machines(self.spec)
            boots = [pool.submit(self.machines.boot, machine) for machine in machines]
            for boot in boots:
                # wait_for_idle_nodes names the node of a boot that failed, and says why.
                with contextlib.suppress(LifecycleScriptError):
                    boot.result()

    def wait_for_idle_nodes(self) -> None:
        """Wait until slurmctld calls every node idle.

        Raises HpctlError: at once with the cause where slurmd of a node, or a service of the head
        node, has ended; after IDLE_TIMEOUT_S with the names of the other nodes.
        """
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        while True:
            self.check_required_daemons_running()
            others = self.list_nodes_not_idle()
            if not others:
                return
            # What slurmctld calls invalid stays so: slurm.conf promises what slurmd lacks.
            hopeless = any("inval" in line for line in others)
            if hopeless or time.monotonic() > deadline or self.ended.is_set():
                raise HpctlError(
                    f"these nodes of the sandbox did not become idle in Slurm: {', '.join(others)}",
                    f"Read their logs in {self.spec.layout.logs}.",
                )
            time.sleep(0.1)

    def check_required_daemons_running(self) -> None:
        """Raise HpctlError where a daemon has ended that a node needs to become idle."""
        ended = self.head.find_ended_service_error()
        if ended is not None:
            raise ended
        reasons = [self.machines.find_node_boot_failure(node) for node in self.spec.names]
        failures = [reason for reason in reasons if reason is not None]
        if failures:
            first, others = failures[0], len(failures) - 1
            verb = "is" if others == 1 else "are"
            more = f" ({others} more of {self.spec.nodes} nodes {verb} down)" if others else ""
            raise HpctlError(f"{first}{more}", first.hint)

    def wait_for_agent_reports(self) -> None:
        """Wait until the daemon has heard every agent: a node that dies before is a stranger to it.

        Raises HpctlError with the others' names.
        """
        # Not imported without a daemon: SQLAlchemy costs every sandbox a third of a second.
        from hpctl.engine import adapters, config

        store = adapters.open_journal_reader(config.read_config_file(self.spec.layout.config))
        nodes = {NodeName(self.spec.node(n)) for n in range(1, self.spec.nodes + 1)}
        deadline = time.monotonic() + HEARD_TIMEOUT_S
        with contextlib.closing(store):
            while silent := nodes - store.health().keys():
                if time.monotonic() > deadline or self.ended.is_set():
                    raise HpctlError(
                        "the sandbox's daemon received no report from these nodes: "
                        f"{', '.join(sorted(silent))}",
                        f"Read the agents' logs in {self.spec.layout.logs}.",
                    )
                time.sleep(0.1)

    def list_nodes_not_idle(self) -> list[str]:
        """Return nodes that slurmctld does not call idle, with what it calls them."""
        done = subprocess.run(
            [self.programs["sinfo"], "--noheader", "--Node", "--format=%N %T", "--partition=dev"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env=make_sandbox_process_environment(self.spec),
        )
        if done.returncode != 0:
            return [done.stderr.strip()]
        lines = [line for line in done.stdout.splitlines() if line.strip()]
        return [line for line in lines if not line.endswith(" idle")] if lines else ["all"]

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request of the control socket."""
        match request.pop("op"):
            case "status":
                return self.status()
            case "inject":
                return {"done": self.faults.inject(**request)}
            case "inject-api":
                return {"done": self.inject_api(**request)}
            case "service":
                return {"pid": self.service(**request)}
            case "down":
                self.ended.set()
                return {}
            case other:
                raise HpctlError(f"the sandbox does not know the request {other!r}")

    def inject_api(self, kind: str, how: dict[str, Any]) -> str:
        """Return a fault of the emulated service."""
        if self.hyperpod is None:
            raise HpctlError(
                "cannot inject a fault of the HyperPod API: this sandbox does not emulate it"
            )
        return self.hyperpod.inject(kind, how)

    def service(self, name: str, do: str) -> int:
        """Start a service of the head node, or send it the signal that `do` names."""
        if do == "start":
            return self.head.start(name)
        self.head.signal(name, signal.Signals[do])
        return self.head.pid(name)

    def status(self) -> dict[str, Any]:
        """Return what runs, as `hpctl sandbox status --json` prints it."""
        return {
            "name": self.spec.name,
            "cluster": self.spec.cluster,
            "state_dir": self.spec.state,
            "slurm_version": self.programs.release,
            "started_at": self.started,
            "supervisor_pid": os.getpid(),
            "services": self.head.pids(),
            "ports": {
                "slurmctld": self.spec.ports.slurmctld,
                "intake": self.spec.ports.intake,
                "emulator": self.spec.ports.emulator,
            },
            "aws": self.aws.filled if self.aws else {},
            "nodes": [self.node_status(node) for node in self._list_expected_worker_nodes()],
        }

    def _list_expected_worker_nodes(self) -> list[str]:
        """Return the workers that there should be: more, or fewer, than at first, once groups
        changed."""
        if self.hyperpod is None:
            return self.spec.names
        there = [str(m.node) for m in self.machines.machines() if m.role == "compute"]
        return there if self.spec.empty else list(dict.fromkeys([*self.spec.names, *there]))

    def node_status(self, node: str) -> dict[str, Any]:
        """Return one instance."""
        machine = self.machines.find_machine_of_node(node)
        if machine is None:
            return {"node": node, "alive": False}
        boot = self.spec.layout.of_node(node) / "boot_id"
        return {
            "node": node,
            "instance_id": machine.instance_id,
            "name": machine.name,
            "group": machine.group,
            "role": machine.role,
            "address": machine.address,
            "alive": self.machines.alive(machine),
            "boot_id": boot.read_text().strip() if boot.exists() else "",
            "slurmd_pid": self.machines.find_node_daemon_pid(node, "slurmd"),
            "agent_pid": self.machines.find_node_daemon_pid(node, "agent"),
        }

    def live(self) -> None:
        """Reap what the tree loses, until it is to end."""
        while not self.ended.wait(1.0):
            reap_orphans(self.head.pids().values(), self.machines.list_instance_init_pids())


def reap_orphans(*known: Iterable[int]) -> None:
    """Collect zombies that were handed to us, leaving those that a Popen of ours waits for."""
    ours = set(chain.from_iterable(known))
    for pid in list_zombie_children(os.getpid()):
        # A thread that runs a command may have collected it since the list was made.
        if pid not in ours:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def main(state: Path) -> int:
    """Run the sandbox of this state directory; the keeper kills what is left after it."""
    become_subreaper()
    spec = load_sandbox_spec(state)
    if spec is None:
        raise HpctlError(f"cannot start the sandbox's supervisor: there is no spec.json in {state}")
    supervisor = SandboxSupervisor(spec)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: supervisor.ended.set())
    set_parent_death_signal(signal.SIGTERM)
    try:
        supervisor.up()
    except HpctlError as error:
        supervisor.say(str(error), failed=True, hint=error.hint)
        return 1
    supervisor.live()
    # Threads may still be booting instances: the keeper ends them with the rest.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
