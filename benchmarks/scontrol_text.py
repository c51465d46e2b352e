"""What `scontrol show node -o` and `squeue` print of a World, as Slurm 22.05 has it.

Every line has the length and the keys of a real one: a parser that skips what it does not need
must still read past it.
"""

import json
import re
import stat
from datetime import datetime
from pathlib import Path

from benchmarks.world import World
from hpctl.slurm import parse
from hpctl.toolkit.hostlist import fold_hostlist
from hpctl.vocabulary.slurm_facts import SlurmJob, SlurmNode

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


MARK = "mark"
CONFIG = """Configuration data as of 2026-05-04T12:00:00
BOOT_TIME               = 2026-05-01T08:00:00
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE_MEMORY
SLURM_CONF              = /etc/slurm/slurm.conf
SLURM_VERSION           = 22.05.8

Slurmctld(primary) at head is UP
"""
"""What `scontrol show config` says of what a read looks at."""


def job_fields(job: SlurmJob) -> list[str]:
    """What squeue prints of a job, in the order of `parse.FIELDS`."""
    started, tres = _stamp(job.start), "cpu=1536,node=8,billing=1536,gres/gpu=64"
    return [
        str(job.id), str(job.id), "N/A", "N/A", job.state, _stamp(job.submit), started, "NONE",
        _stamp(job.submit), str(job.restarts), "1", "1", str(job.batch_host), job.partition,
        fold_hostlist(job.nodes), "None", "0", "1000", "ada", str(len(job.nodes)), "64", "1536",
        "192", "8", "NO", tres, "N/A", "gres:gpu:8", "N/A", "N/A", "", "(null)",
        job.comment, job.name,
    ]  # fmt: skip


def job_line(job: SlurmJob) -> str:
    """Its record, with the marks of a read whose mark is MARK."""
    *rest, last = job_fields(job)
    return "".join([*(f"{field}m{MARK};" for field in rest), f"{last}m{MARK}."])


def as_json(lines: list[str]) -> str:
    """The same keys and values as a JSON document, as a release with `--json` would print."""
    return json.dumps([dict(_pairs(line)) for line in lines])


def _pairs(line: str) -> list[tuple[str, str]]:
    arguments = _KEY.split(line.strip())[1:]
    return list(zip(arguments[::2], arguments[1::2], strict=True))


def job_json(job: SlurmJob) -> dict[str, str]:
    """The same fields by name."""
    return dict(zip(parse.FIELDS, job_fields(job), strict=True))


def install(world: World, directory: Path) -> Path:
    """A `scontrol` that prints these texts; the directory to give to a Runner as `bin_dir`."""
    for name, lines in texts(world).items():
        (directory / name).write_text("".join(f"{line}\n" for line in lines))
    (directory / "config").write_text(CONFIG)
    (directory / "names").write_text("".join(f"{name}\n" for name in world.slurm.nodes))
    for name, script in {
        "scontrol": f"""[ "$1" = --version ] && {{ echo "slurm-wlm 22.05.8"; exit; }}
exec cat "{directory}/$2"
""",
        # The marks are the reader's own, and new each time.
        "squeue": f"""[ -n "$SQUEUE_FORMAT2" ] || exec cat /dev/null
mark=${{SQUEUE_FORMAT2#*:m}}
exec sed "s/m{MARK}\\([;.]\\)/m${{mark%%;*}}\\1/g" "{directory}/job"
""",
        "sinfo": f'exec cat "{directory}/names"\n',
    }.items():
        program = directory / name
        program.write_text(f"#!/bin/sh\n{script}")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return directory


def texts(world: World) -> dict[str, list[str]]:
    """The lines of each listing."""
    return {
        "node": [node_line(n) for n in world.slurm.nodes.values()],
        "job": [job_line(j) for j in world.slurm.jobs.values()],
    }
