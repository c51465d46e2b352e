"""Which node this is: its group, role and address, from what HyperPod left on it.

resource_config.json says who is in the cluster; the role comes from config.json, from
provisioning_parameters.json, or from SlurmConfig where the API configures Slurm.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lifecycle.config import Config
from lifecycle.failure import Failure
from lifecycle.machine import Machine

CONFIG_DIR = "/opt/ml/config"
ADDRESS_TRIES = 7
"""The network may come after us: waits of 1, 2, 4, ... 32 s."""


@dataclass
class Node:
    """One node, as its steps see it. `mode` is OnCreate or OnInitComplete."""

    mode: str
    bundle: Path
    machine: Machine
    config: Config
    parameters: dict[str, Any]
    cluster: str
    arn: str
    group: str
    role: str
    instance_type: str
    instance_name: str
    instance_id: str
    address: str
    controllers: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the host name, which HyperPod makes from the address; Slurm's NodeName may be
        another."""
        return name_of(self.address)

    @property
    def region(self) -> str:
        """Of the cluster; empty where the ARN has none."""
        parts = self.arn.split(":")
        return parts[3] if len(parts) > 3 else ""

    @property
    def guess(self) -> str:
        """Return what to warn of where nothing says this group's role; empty where something
        does."""
        groups = self.parameters.get("worker_groups") or []
        workers = [one.get("instance_group_name") for one in groups]
        if not self.parameters or self.role != "compute" or self.group in workers:
            return ""
        if self.group in self.config["roles"]:
            return ""
        return (
            "WARNING: group {} is no group of provisioning_parameters.json, whose worker_groups "
            "are {}: taken for compute".format(self.group, ", ".join(map(str, workers)) or "none")
        )

    @property
    def slurm_etc(self) -> Path:
        """Return where slurm.conf is, or would be: HyperPod's place first, then Debian's."""
        for etc in ("/opt/slurm/etc", "/etc/slurm"):
            if self.machine.path(etc).is_dir():
                return self.machine.path(etc)
        return self.machine.path("/opt/slurm/etc")

    def setting(self, section: str, key: str, parameter: str) -> str:
        """config.json's word, or that of provisioning_parameters.json."""
        return str(self.config[section].get(key) or self.parameters.get(parameter) or "")


def name_of(address: str) -> str:
    """Return the host name of an address."""
    return "ip-" + address.replace(".", "-")


def resource_config() -> str | None:
    """Return where HyperPod says that resource_config.json is; None for the usual place."""
    return os.environ.get("SAGEMAKER_RESOURCE_CONFIG_PATH")


def discover(
    mode: str, bundle: Path, machine: Machine, config: Config, address: str | None
) -> Node:
    """This node. Raises Failure where it is not in resource_config.json."""
    named = resource_config()
    path = Path(named) if named else machine.path(CONFIG_DIR) / "resource_config.json"
    resources = _object(path)
    parameters = _parameters(bundle, machine)
    group, instance = _find(resources, [address] if address else None, path)
    cluster = resources.get("ClusterConfig") or {}
    controllers = _controllers(resources, parameters, config)
    where = str(instance["CustomerIpAddress"])
    return Node(
        mode=mode,
        bundle=bundle,
        machine=machine,
        config=config,
        parameters=parameters,
        cluster=str(cluster.get("ClusterName", "")),
        arn=str(cluster.get("ClusterArn", "")),
        group=str(group.get("Name", "")),
        role=_role(group, where, controllers, parameters, config),
        instance_type=str(group.get("InstanceType", "")),
        instance_name=str(instance.get("InstanceName", "")),
        instance_id=str(instance.get("InstanceId", "")),
        address=where,
        controllers=controllers,
    )


def _object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Failure(f"{path}: {error}") from error
    if not isinstance(data, dict):
        raise Failure(f"{path} holds no JSON object")
    return data


def _parameters(bundle: Path, machine: Machine) -> dict[str, Any]:
    for path in (bundle, machine.path(CONFIG_DIR)):
        if (path / "provisioning_parameters.json").exists():
            return _object(path / "provisioning_parameters.json")
    return {}


def _instances(group: dict[str, Any]) -> list[dict[str, Any]]:
    return group.get("Instances") or []


def _groups(resources: dict[str, Any]) -> list[dict[str, Any]]:
    return resources.get("InstanceGroups") or []


def _find(
    resources: dict[str, Any], given: list[str] | None, path: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    own: list[str] = []
    for attempt in range(1 if given else ADDRESS_TRIES):
        if attempt:
            time.sleep(2 ** (attempt - 1))
        own = given or addresses()
        for group in _groups(resources):
            for instance in _instances(group):
                if instance.get("CustomerIpAddress") in own:
                    return group, instance
        # An address that is there, and in no group, will not come by waiting much longer.
        if own and attempt >= 3:
            break
    raise Failure(
        "no instance of {} has an address of this node ({})".format(
            path, ", ".join(own) or "none found"
        )
    )


def addresses() -> list[str]:
    """This machine's IPv4 addresses, the one of its default route first; never loopback."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("10.254.254.254", 1))
            found.append(str(probe.getsockname()[0]))
        except OSError:
            pass
    try:
        output = subprocess.run(
            ["hostname", "-I"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=10,
            check=False,
        ).stdout.decode()
    except (OSError, subprocess.TimeoutExpired):
        output = ""
    found += [word for word in output.split() if "." in word and word not in found]
    return [address for address in found if not address.startswith("127.")]


def _controllers(
    resources: dict[str, Any], parameters: dict[str, Any], config: Config
) -> tuple[str, ...]:
    slurm = resources.get("SlurmConfig") or {}
    named = [slurm.get("PrimaryControllerIp")] + (slurm.get("SecondaryControllerIps") or [])
    found = [str(address) for address in named if address]
    for group in _groups(resources):
        name = group.get("Name")
        if name == parameters.get("controller_group") or (
            config["roles"].get(name) == "controller" or _node_type(group) == "controller"
        ):
            # `<group>-1` first: it is the primary where nothing else says so.
            members = sorted(_instances(group), key=lambda one: _number(one.get("InstanceName")))
            found += [str(one["CustomerIpAddress"]) for one in members]
    return tuple(dict.fromkeys(found))


def _number(name: Any) -> int:
    digits = str(name).rpartition("-")[2]
    return int(digits) if digits.isdigit() else 0


def _node_type(group: dict[str, Any]) -> str:
    return str((group.get("SlurmConfig") or {}).get("NodeType", "")).lower()


def _role(
    group: dict[str, Any],
    address: str,
    controllers: tuple[str, ...],
    parameters: dict[str, Any],
    config: Config,
) -> str:
    name = group.get("Name")
    if name in config["roles"]:
        return str(config["roles"][name])
    if address in controllers:
        return "controller"
    if name == parameters.get("login_group") or _node_type(group) == "login":
        return "login"
    return "compute"
