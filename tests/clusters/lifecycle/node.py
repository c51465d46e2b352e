"""A node of a cluster on a clean machine: what HyperPod and the AMI would have left there."""

import base64
import hashlib
import json
import platform
import re
import shutil
import sys
import zipfile
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from hpctl.clusters import bundle as bundles
from hpctl.clusters.bundle_wheels import copy_wheels_with_dependencies
from tests.clusters.lifecycle.chroot import Machine

ADDRESSES = {"controller": "10.9.0.5", "login": "10.9.2.5", "compute": "10.9.1.20"}
GROUPS = {"controller": "ctl", "login": "login", "compute": "h100"}
BUCKET = "/tmp/sagemaker-demo/scripts"
ENVIRONMENT = {"HPCTL_LIFECYCLE_BACKOFF_S": "0.05", "HPCTL_LIFECYCLE_FAILURE_WAIT_S": "0"}
ROOT = Path(__file__).resolve().parents[3]


def resources(**more) -> dict[str, Any]:
    """resource_config.json with a node of each role, and a group that has none yet."""
    groups: list[dict[str, Any]] = [
        {
            "Name": group,
            "InstanceType": "ml.p5.48xlarge" if role == "compute" else "ml.m5.xlarge",
            "Instances": [
                {
                    "InstanceName": f"{group}-1",
                    "AgentIpAddress": "172.16.0.9",
                    "CustomerIpAddress": ADDRESSES[role],
                    "InstanceId": f"i-{number:017d}",
                    "InstanceLabel": None,
                }
            ],
        }
        for number, (role, group) in enumerate(GROUPS.items(), 1)
    ]
    arn = "arn:aws:sagemaker:us-east-1:000000000000:cluster/abcd1234efgh"
    return {
        "ClusterConfig": {"ClusterArn": arn, "ClusterName": "demo"},
        "ClusterType": "Slurm",
        "InstanceGroups": [*groups, {"Name": "spare", "InstanceType": "x", "Instances": None}],
        **more,
    }


PARAMETERS = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "ctl",
    "login_group": "login",
    "worker_groups": [{"instance_group_name": "h100", "partition_name": "ml.p5.48xlarge"}],
    "fsx_dns_name": "fs-0aaaaaaaaaaaaaaaa.fsx.us-east-1.amazonaws.com",
    "fsx_mountname": "abcdefgh",
    "fsx_openzfs_dns_name": "fs-0bbbbbbbbbbbbbbbb.fsx.us-east-1.amazonaws.com",
}


def wheelhouse(target: Path, whole: bool = False, version: str = "0.1.0") -> tuple[Path, ...]:
    """Wheels enough for `hpctl --version`: this tree's hpctl with click, and pip.

    `whole`: with all that it needs, for daemon and agent, and what it ships.
    """
    target.mkdir()
    everything = [need for need in requires("hpctl") or () if "extra ==" not in need]
    needs = everything if whole else ["click"]
    entry = "[console_scripts]\nhpctl = hpctl.cli.main:main\n"
    files = {
        path.relative_to(ROOT).as_posix(): path.read_bytes()
        for path in sorted((ROOT / "hpctl").rglob("*"))
        if path.is_file()
        and path.suffix != ".pyc"
        and not path.is_relative_to(ROOT / "hpctl/sandbox")
    }
    own = files["hpctl/__init__.py"].decode()
    files["hpctl/__init__.py"] = own.replace('"0.1.0"', f'"{version}"').encode()
    for name in ("lifecycle_scripts", "slurm_plugins") if whole else ():
        for path in (ROOT / name).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                files[f"hpctl/_shipped/{path.relative_to(ROOT).as_posix()}"] = path.read_bytes()
    info = f"hpctl-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", "Name: hpctl", f"Version: {version}"]
    metadata += [f"Requires-Dist: {need}" for need in needs]
    files[f"{info}/METADATA"] = "\n".join([*metadata, ""]).encode()
    files[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/entry_points.txt"] = entry.encode()
    with zipfile.ZipFile(target / f"hpctl-{version}-py3-none-any.whl", "w") as wheel:
        record = ""
        for name, content in files.items():
            wheel.writestr(name, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=")
            record += f"{name},sha256={digest.decode()},{len(content)}\n"
        wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    copy_wheels_with_dependencies(
        ["pip", *(re.split(r"[^\w.-]", need)[0] for need in needs)], target
    )
    return tuple(sorted(target.glob("*.whl")))


def bundle(target: Path, wheels: tuple[Path, ...] = (), **files: str) -> bundles.LifecycleBundle:
    """A bundle with what a site adds: users, parameters, and more by path (`__` for a dash)."""
    target.mkdir(parents=True)
    here = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    made_for = {**here, "machine": platform.machine()}
    bundles.write_bundle_files(
        target, bundles.LifecycleBundleAdditions(wheels=wheels, made_for=made_for)
    )
    (target / "config.json").write_text(json.dumps({"failure_wait_s": 0}))
    (target / "shared_users.txt").write_text("ada,2001,/fsx/ada\nbob,2002,/fsx/bob\n")
    (target / "provisioning_parameters.json").write_text(json.dumps(PARAMETERS))
    for name, text in files.items():
        path = target / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return bundles.write_bundle_manifest(target)


HELPER = """#!/bin/sh
# Plays a file system in the network: mount(8) calls it for its type, with source and place.
mkdir -p "/srv/{kind}"
exec mount --bind "/srv/{kind}" "$2"
"""


def furnish(
    machine: Machine, made: bundles.LifecycleBundle, rc: dict[str, Any] | None = None
) -> None:
    """Leave on a machine what an AMI and HyperPod's agents do before the first script runs."""
    shutil.copytree(made.directory, machine.path(BUCKET))
    machine.write("/opt/ml/config/resource_config.json", json.dumps(rc or resources()))
    for kind in ("lustre", "nfs"):
        machine.write(f"/sbin/mount.{kind}", HELPER.format(kind=kind), 0o755)
    names = [PARAMETERS["fsx_dns_name"], PARAMETERS["fsx_openzfs_dns_name"]]
    machine.write("/etc/hosts", "127.0.0.1 localhost\n" + "".join(f"10.9.9.9 {n}\n" for n in names))
    machine.write(
        "/etc/slurm/slurm.conf", f"SlurmctldHost=ip-10-9-0-5({ADDRESSES['controller']})\n"
    )
    machine.write("/lib/systemd/system/mariadb.service", UNIT)
    machine.says("useradd", "--create-home", "--shell", "/bin/bash", "--uid", "1001", "ubuntu")
    machine.says("ssh-keygen", "-A")


UNIT = """[Unit]
Description=a database that the AMI brings
[Service]
ExecStart=/bin/true
[Install]
WantedBy=multi-user.target
"""


def command(role: str, script: str = "on_create.sh") -> tuple[str, ...]:
    """What HyperPod runs on a node of a role."""
    return ("sh", f"{BUCKET}/{script}", "--ip", ADDRESSES[role])


def states(machine: Machine) -> dict[str, dict[str, Any]]:
    """What the runner wrote down, by step."""
    directory = machine.path("/var/lib/hpctl/lifecycle")
    return {path.stem: json.loads(path.read_text()) for path in directory.glob("*.json")}
