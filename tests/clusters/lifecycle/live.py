"""What HyperPod and its AMI leave on machines that are switched on, before any script runs."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.clusters.lifecycle.booted import Booted
from tests.clusters.lifecycle.node import (
    ADDRESSES,
    BUCKET,
    ENVIRONMENT,
    HELPER,
    PARAMETERS,
    resources,
)
from tests.waiting import until

BIRTH_S = 280
COMMAND = ("sh", f"{BUCKET}/on_create.sh")
WEIGHTS = {"pam": "required", "observability": "required"}
SLURM_CONF = """\
# As HyperPod's cluster agent writes it.
ClusterName=demo
SlurmctldHost=ip-10-9-0-5(10.9.0.5)
SlurmUser=slurm
AuthType=auth/munge
SlurmctldParameters=enable_configless
StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
PrologFlags=contain
SlurmctldTimeout=5
ReturnToService=1
SelectType=select/cons_tres
GresTypes=gpu
NodeName=ip-10-9-1-20 NodeAddr=10.9.1.20 State=UNKNOWN
NodeName=ip-10-9-2-5 NodeAddr=10.9.2.5 State=UNKNOWN
PartitionName=dev Nodes=ip-10-9-1-20 Default=YES MaxTime=INFINITE State=UP
"""
SLURMD = """\
[Unit]
Description=Slurm node daemon, as older AMIs have it: configless, with a place for the controller
After=munge.service network-online.target remote-fs.target
Wants=network-online.target
[Service]
Type=simple
ExecStartPre=/bin/rm -f /opt/slurm/etc/slurm.conf
ExecStart=/opt/slurm/sbin/slurmd -D $SLURMD_OPTIONS
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
LimitMEMLOCK=infinity
LimitSTACK=infinity
Delegate=yes
TasksMax=infinity
[Install]
WantedBy=multi-user.target
"""


def connect(machine: Booted, switch: Booted) -> None:
    """Give a machine its address in the cluster's network."""
    if machine is switch:
        machine.switch()
    else:
        machine.plug_into(switch)


def furnish(machine: Booted, controller: bool, rc: dict[str, Any] | None = None) -> None:
    """Leave on a machine what is there before the lifecycle scripts are."""
    machine.write("/opt/ml/config/resource_config.json", json.dumps(rc or resources()))
    for kind in ("lustre", "nfs"):
        machine.write(f"/sbin/mount.{kind}", HELPER.format(kind=kind), 0o755)
    hosts = {address: "ip-" + address.replace(".", "-") for address in ADDRESSES.values()}
    hosts[machine.address] = machine.name
    lines = [f"{address} {name}" for address, name in hosts.items()]
    lines += [f"10.9.9.9 {PARAMETERS[key]}" for key in ("fsx_dns_name", "fsx_openzfs_dns_name")]
    machine.write("/etc/hosts", "\n".join(["127.0.0.1 localhost", *lines, ""]))
    machine.write("/etc/systemd/system/slurmd.service", SLURMD)
    machine.says("useradd", "--create-home", "--shell", "/bin/bash", "--uid", "1001", "ubuntu")
    machine.says("mkdir", "-p", "/opt/slurm", "/var/spool/slurmd")
    for name, target in (("bin", "/usr/bin"), ("sbin", "/usr/sbin"), ("etc", "/etc/slurm")):
        machine.says("ln", "-s", target, f"/opt/slurm/{name}")
    machine.says("install", "-d", "-o", "slurm", "/var/spool/slurmctld", "/var/log/slurm")
    # Debian's own; AMIs have none, and logrotate knows a file once.
    machine.says("sh", "-c", "rm -f /etc/logrotate.d/slurm*")
    if controller:
        machine.write("/etc/slurm/slurm.conf", SLURM_CONF)
        machine.write("/etc/slurm/accounting.conf", "")
        # Of the two it takes neither where the machine's kernel has both; no plugin here uses one.
        machine.write("/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n")
    machine.says("systemctl", "daemon-reload")


def download(s3, bucket: str, machine: Booted) -> None:
    """What the agent does next: the prefix, to /tmp, without modes."""
    for item in s3.list_objects_v2(Bucket=bucket)["Contents"]:
        path = machine.path(BUCKET) / item["Key"].partition("/")[2]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            shutil.copyfileobj(s3.get_object(Bucket=bucket, Key=item["Key"])["Body"], file)


def site(target: Path) -> list[Path]:
    """What a site adds to its bundle."""
    target.mkdir()
    parts = {
        "provisioning_parameters.json": json.dumps(PARAMETERS),
        "shared_users.txt": "ada,2001,/fsx/ada\nbob,2002,/fsx/bob\n",
        "config.json": json.dumps({"failure_wait_s": 0, "steps": WEIGHTS}),
        "exporters/node_exporter.compute": "#!/bin/sh\nexec sleep 100000\n",
        "site.d/1.sh": '#!/bin/sh\necho "$HPCTL_ROLE $HPCTL_NODE" >/etc/site\n',
    }
    for name, text in parts.items():
        path = target / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return [target / name for name in ("provisioning_parameters.json", "shared_users.txt")] + [
        target / name for name in ("exporters", "site.d")
    ]


def birth(machine: Booted) -> str:
    """Run the entry script to its good end; its log."""
    with machine.start(*COMMAND, env=ENVIRONMENT) as process:
        out, _ = process.communicate(timeout=BIRTH_S)
    assert process.returncode == 0, out
    assert "WARNING" not in out, out
    return out


def eventually(what: Callable[[], Any], within: float = 30):
    """What a function finds, as soon as it finds anything."""
    return until(what, within, every=0.2)
