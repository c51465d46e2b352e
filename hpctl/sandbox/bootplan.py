"""What an instance runs when it boots, and in which environment: plain data for its init."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hpctl.sandbox import clocks, hardware
from hpctl.sandbox.machines import EmulatedMachine, LifecycleScriptError
from hpctl.sandbox.packages import SandboxPrograms
from hpctl.sandbox.proctree import OWNED
from hpctl.sandbox.spec import SandboxSpec
from hpctl.toolkit.compat import SAFE_PATH

LIFECYCLE_TIMEOUT_S = 60.0

HARDWARE = "hardware"
"""Under a node's directory: the root below which its checks look for hardware."""
NVML_SCRIPT = "nvml.script"
"""Under a node's directory: what its simulated GPUs answer, where there are any."""
LASTING = "lasting"
"""Under a node's directory: while this file is there, a reboot fixes nothing."""


def make_instance_boot_plan(
    spec: SandboxSpec,
    programs: SandboxPrograms,
    machine: EmulatedMachine,
    lifecycle: dict[str, Any] | None,
    *,
    alone: bool = False,
) -> dict[str, Any]:
    """Return what an instance's init does, in its own form (see hpctl.sandbox.init).

    `alone`: it runs the lifecycle script and nothing else.
    """
    if alone:
        return {"wait": False, "lifecycle": lifecycle}
    logs = spec.layout.logs
    directory = spec.layout.of_node(machine.node)
    sock = directory / "munge.sock"
    number = int(machine.address.rsplit(".")[-1])
    steps: dict[str, Any] = {
        "wait": spec.netns,
        "munged": {
            "command": make_munged_command(programs, spec, sock, directory, machine.address),
            "socket": str(sock),
            "log": str(directory / "munged.out"),
        },
        "lifecycle": lifecycle,
        "slurmd": {
            "command": _make_slurmd_command(programs, spec, machine, directory),
            "port": spec.ports.slurmd + number,
            "log": str(logs / f"slurmd.{machine.node}.out"),
            "pidfile": str(directory / "slurmd.pid"),
        },
    }
    if spec.agents:
        steps["agent"] = {
            "command": _make_agent_command(spec, machine, directory, sock),
            "env": _make_nvml_environment(spec, directory) | _make_clock_environment(spec, machine),
            "log": str(logs / f"agent.{machine.node}.log"),
            "pidfile": str(directory / "agent.pid"),
        }
    return steps


def _make_slurmd_command(
    programs: SandboxPrograms, spec: SandboxSpec, machine: EmulatedMachine, directory: Path
) -> list[str]:
    command = [programs["slurmd"], "-D", "-b", "-N", machine.node]
    if not spec.configless:
        return [*command, "-f", str(directory / "slurm.conf")]
    # slurmd asks for its configuration with the credential of munge's default socket, and links
    # /run/slurm/conf to what it gets. That names the head's socket: here it is the node's own.
    own, head = directory / "munge.sock", spec.layout.munge_socket
    script = (
        'mkdir -p /run/munge && ln -sf "$1" /run/munge/munge.socket.2'
        ' && mount --bind "$1" "$2" && shift 2 && exec "$@"'
    )
    server = f"{spec.head_address}:{spec.ports.slurmctld}"
    return ["sh", "-c", script, "sh", str(own), str(head), *command, "--conf-server", server]


def _make_agent_command(
    spec: SandboxSpec, machine: EmulatedMachine, directory: Path, sock: Path
) -> list[str]:
    root, settings = directory / HARDWARE, directory / "agent.yaml"
    lasts = (directory / LASTING).exists()
    if not lasts:
        hardware.make_sysfs_tree(root, spec.hardware)
        (directory / NVML_SCRIPT).write_text(spec.nvml_script)
    if not settings.exists():
        settings.write_text(yaml.safe_dump(spec.agent_config) if spec.agent_config else "")
    options = {
        "head": ",".join(spec.head_intake_urls),
        "instance-id": machine.instance_id,
        "boot-id-file": directory / "boot_id",
        "kmsg": directory / "kmsg",
        "munge-socket": sock,
        "spool": directory / "agent",
        # Not this machine's hardware and scripts: the node's own, as faults make them.
        "root": root,
        "config": settings,
        "socket": directory / "agent.sock",
        "plugins": spec.plugins or directory / "checks.d",
        "hma-log": directory / "hma.log",
        "metrics": f"{machine.address}:{spec.ports.metrics}",
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, *SAFE_PATH, "hpctl", "agent", "run", *arguments]


def write_spot_agent_config(spec: SandboxSpec, machine: EmulatedMachine, metadata_url: str) -> None:
    """Write a new spot instance's agent.yaml: its agent is to ask for EC2's notice."""
    expected = {**spec.agent_config.get("expected", {}), "spot": True}
    settings = {**spec.agent_config, "expected": {**expected, "metadata_url": metadata_url}}
    path = spec.layout.of_node(machine.node) / "agent.yaml"
    path.write_text(yaml.safe_dump(settings))


def _make_nvml_environment(spec: SandboxSpec, directory: Path) -> dict[str, str]:
    """Return the environment in which an agent's NVML child meets the node's simulated GPUs."""
    if not spec.nvml_library:
        return {}
    script = str(directory / NVML_SCRIPT)
    return {"LD_LIBRARY_PATH": spec.nvml_library, "HPCTL_NVML_STUB": script}


def _make_clock_environment(spec: SandboxSpec, machine: EmulatedMachine) -> dict[str, str]:
    """Return the environment in which an agent goes by its node's clock."""
    if not spec.clock_library:
        return {}
    clock = spec.layout.get_clock_offset_path(machine.node)
    if not clock.exists():
        clocks.set_clock_offset(clock, 0)
    return clocks.make_clock_environment(spec.clock_library, clock)


def make_lifecycle_script_boot_step(
    spec: SandboxSpec,
    machine: EmulatedMachine,
    resources: dict[str, Any],
    fetch: Callable[[str, Path], None] | None,
) -> dict[str, Any] | None:
    """Return the plan's lifecycle step: a copy of what the S3 prefix holds, and its entry script.

    `resources` is resource_config.json; `fetch` brings what lies below an S3 URI into a
    directory, None stands for a copy of the sandbox's own. Raises LifecycleScriptError.
    """
    script = machine.on_create or machine.on_init_complete
    if not script:
        return None
    directory = spec.layout.of_node(machine.node)
    target = directory / "lifecycle"
    if fetch:
        target.mkdir()
        fetch(machine.source_s3_uri, target)
    else:
        _copy_scripts(spec, machine, target)
    entry = target / script
    if not entry.is_file():
        raise LifecycleScriptError(
            f"cannot boot the node: the lifecycle script {script} is not in "
            f"{machine.source_s3_uri}",
            "Copy the script there, under the name in LifeCycleConfig.",
        )
    entry.chmod(0o755)
    interpreted = entry.read_bytes()[:2] == b"#!"
    config = directory / "resource_config.json"
    config.write_text(json.dumps(resources, indent=1))
    return {
        "script": script,
        "command": [f"./{script}"] if interpreted else ["sh", script],
        "cwd": str(target),
        "env": {
            **_make_execution_role_environment(spec),
            "SAGEMAKER_RESOURCE_CONFIG_PATH": str(config),
            # An instance is processes: what the scripts do to the node stays in its directory.
            "HPCTL_LIFECYCLE_ROOT": str(directory / "root"),
            "HPCTL_LIFECYCLE_IP": machine.address,
        },
        "log": str(directory / "lifecycle.log"),
        "timeout": LIFECYCLE_TIMEOUT_S,
    }


def _make_execution_role_environment(spec: SandboxSpec) -> dict[str, str]:
    """Return what the instance's execution role lets a script reach: the emulated AWS."""
    if not spec.moto:
        return {}
    return {k: v for k, v in make_sandbox_user_environment(spec).items() if k.startswith("AWS_")}


def _copy_scripts(spec: SandboxSpec, machine: EmulatedMachine, target: Path) -> None:
    source = spec.lifecycle_dir
    if not source.is_dir():
        raise LifecycleScriptError(
            f"cannot boot the node: the directory {source}, which the sandbox uses for "
            f"{machine.source_s3_uri}, does not exist",
            "Give a directory with the lifecycle scripts: --lifecycle DIR.",
        )
    shutil.copytree(source, target)


def make_hyperpod_resource_config(
    cluster: str, arn: str, groups: Mapping[str, str], machines: Iterable[EmulatedMachine]
) -> dict[str, Any]:
    """resource_config.json, in the shape that HyperPod's host agent writes.

    `groups` are the instance types by group; a group without instances has `Instances` null.
    """
    members: dict[str, list[EmulatedMachine]] = {name: [] for name in groups}
    controllers = []
    for machine in machines:
        members.setdefault(machine.group, []).append(machine)
        if machine.role == "controller":
            controllers.append(machine.address)
    listed = []
    for name, here in members.items():
        listed.append(
            {
                "Name": name,
                "InstanceType": groups.get(name) or here[0].instance_type,
                "Instances": [_make_resource_config_instance(machine) for machine in here] or None,
            }
        )
    return {
        "ClusterConfig": {"ClusterArn": arn, "ClusterName": cluster},
        "ClusterType": "Slurm",
        "SlurmConfig": {
            "PrimaryControllerIp": next(iter(controllers), None),
            "SecondaryControllerIps": controllers[1:],
        },
        "InstanceGroups": listed,
    }


def _make_resource_config_instance(machine: EmulatedMachine) -> dict[str, Any]:
    return {
        "InstanceName": machine.name,
        # HyperPod's own agents have a separate network (AWS's devops-agent notes): a reader who
        # takes this address for the node's finds no host there.
        "AgentIpAddress": f"172.16.{'.'.join(machine.address.split('.')[2:])}",
        "CustomerIpAddress": machine.address,
        "InstanceId": machine.instance_id,
        "InstanceLabel": None,
    }


def make_sandbox_process_environment(spec: SandboxSpec) -> dict[str, str]:
    """Return the environment of a sandbox's own processes: marked, and free of the starter's
    Slurm."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH", "MUNGE"))}
    root = str(Path(__file__).resolve().parents[2])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    env[OWNED] = spec.id
    env["SLURM_CONF"] = str(spec.layout.slurm_conf)
    env["LC_ALL"] = "C.UTF-8"
    if spec.prefix:
        env["PATH"] = f"{spec.prefix}/bin:{spec.prefix}/sbin:{env.get('PATH', '')}"
    return env


def make_munged_command(
    programs: SandboxPrograms, spec: SandboxSpec, sock: Path, directory: Path, origin: str
) -> list[str]:
    """Return the command of a munged with its own key and socket; credentials carry `origin`."""
    return [
        programs["munged"],
        "--foreground",
        f"--socket={sock}",
        f"--key-file={spec.layout.munge_key}",
        f"--log-file={directory / 'munged.log'}",
        f"--pid-file={directory / 'munged.pid'}",
        f"--seed-file={directory / 'munged.seed'}",
        f"--origin={origin}",
        "--num-threads=2",
        "--group-update-time=-1",
    ]


def make_sandbox_user_environment(spec: SandboxSpec) -> Mapping[str, str]:
    """Return what a user needs to be on this cluster: Slurm, the emulated AWS, the daemon's
    file."""
    env = {
        "SLURM_CONF": str(spec.layout.slurm_conf),
        "HPCTL_CONFIG": str(spec.layout.config),
        # Jobs inherit it; the munged of their node they find by the SLURM_CONF of its slurmd.
        "HPCTL_HEAD": ",".join(spec.head_intake_urls),
    }
    if spec.prefix:
        env["PATH"] = f"{spec.prefix}/bin:{spec.prefix}/sbin:{os.environ.get('PATH', '')}"
    emulator = f"http://127.0.0.1:{spec.ports.emulator}"
    # What moto does not have, the emulator answers.
    others = ("SAGEMAKER", "SERVICE_QUOTAS")
    return {
        **env,
        **{f"AWS_ENDPOINT_URL_{name}": emulator for name in others},
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{spec.ports.moto}" if spec.moto else emulator,
        "AWS_ACCESS_KEY_ID": spec.access_key,
        "AWS_SECRET_ACCESS_KEY": spec.secret_key,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
