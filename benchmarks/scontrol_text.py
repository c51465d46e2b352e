"""What `scontrol show node -o` and `show job -o` print of a World, in the words of Slurm 22.05.

Every line has the length and the keys of a real one: a parser that skips what it does not need
must still read past it.
"""

from __future__ import annotations

import json
import re
import stat
from datetime import datetime
from pathlib import Path

from benchmarks.world import World
from hpctl.core.hostlist import fold
from hpctl.core.model import SlurmJob, SlurmNode

_KEY = re.compile(r"(?:^| +)([A-Z][A-Za-z_:]*)=")


def _stamp(at: datetime | None) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%S}" if at else "Unknown"


def node_line(node: SlurmNode) -> str:
    return (
        f"NodeName={node.name} Arch=x86_64 CoresPerSocket=48 CPUAlloc=96 CPUEfctv=192 CPUTot=192 "
        "CPULoad=71.03 AvailableFeatures=p5.48xlarge,efa,us-east-1d "
        "ActiveFeatures=p5.48xlarge,efa,us-east-1d Gres=gpu:8(S:0-1) "
        f"NodeAddr={node.address} NodeHostName={node.name} Version=22.05.8 "
        "OS=Linux 5.15.0-1051-aws #56~20.04.1-Ubuntu SMP Tue Nov 28 15:43:31 UTC 2023 "
        "RealMemory=2000000 AllocMem=0 FreeMem=1873104 Sockets=2 Boards=1 "
        f"State={node.state} ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A "
        f"Partitions={','.join(node.partitions)}  BootTime={_stamp(node.boot_time)} "
        f"SlurmdStartTime={_stamp(node.slurmd_start)} LastBusyTime=2026-05-04T11:59:58 "
        "CfgTRES=cpu=192,mem=2000000M,billing=192,gres/gpu=8 AllocTRES=cpu=96,gres/gpu=8 "
        "CapWatts=n/a CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 "
        "ExtSensorsTemp=n/s "
    )


def job_line(job: SlurmJob) -> str:
    work = f"/fsx/ubuntu/runs/{job.id}"
    return (
        f"JobId={job.id} JobName={job.name} UserId={job.user} GroupId=ada(1000) MCS_label=N/A "
        "Priority=4294901741 Nice=0 Account=(null) QOS=(null) "
        f"JobState={job.state} Reason=None Dependency=(null) Requeue=1 Restarts={job.restarts} "
        "BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=04:00:12 TimeLimit=UNLIMITED TimeMin=N/A "
        f"SubmitTime={_stamp(job.submit)} EligibleTime={_stamp(job.submit)} "
        f"AccrueTime={_stamp(job.submit)} StartTime={_stamp(job.start)} EndTime=Unknown "
        "Deadline=N/A SuspendTime=None SecsPreSuspend=0 LastSchedEval=2026-05-04T08:00:00 "
        f"Scheduler=Main Partition={job.partition} AllocNode:Sid=10.1.0.4:26341 "
        f"ReqNodeList=(null) ExcNodeList=(null) NodeList={fold(job.nodes)} "
        f"BatchHost={job.batch_host} NumNodes={len(job.nodes)} NumCPUs=1536 NumTasks=64 "
        "CPUs/Task=24 ReqB:S:C:T=0:0:*:* TRES=cpu=1536,node=8,billing=1536,gres/gpu=64 "
        "Socks/Node=* NtasksPerN:B:S:C=8:0:*:* CoreSpec=* MinCPUsNode=192 MinMemoryNode=0 "
        "MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=NO Contiguous=0 "
        f"Licenses=(null) Network=(null) Command={work}/train.sbatch WorkDir={work} "
        f"StdErr={work}/job.log StdIn=/dev/null StdOut={work}/job.log Power= "
        "TresPerNode=gres:gpu:8 "
    )


def as_json(lines: list[str]) -> str:
    """The same keys and values as a JSON document, as a release with `--json` would print."""
    return json.dumps([dict(_pairs(line)) for line in lines])


def _pairs(line: str) -> list[tuple[str, str]]:
    words = _KEY.split(line.strip())[1:]
    return list(zip(words[::2], words[1::2], strict=True))


def install(world: World, directory: Path) -> Path:
    """A `scontrol` that prints these texts; the directory to give to a Runner as `bin_dir`."""
    for name, lines in texts(world).items():
        (directory / name).write_text("".join(f"{line}\n" for line in lines))
    program = directory / "scontrol"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && { echo "slurm-wlm 22.05.8"; exit; }\n'
        f'exec cat "{directory}/$2"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return directory


def texts(world: World) -> dict[str, list[str]]:
    """The lines of each listing, by what scontrol is asked to show."""
    return {
        "node": [node_line(n) for n in world.slurm.nodes.values()],
        "job": [job_line(j) for j in world.slurm.jobs.values()],
    }
