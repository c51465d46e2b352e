"""What Slurm 22.05.8 prints of a node (`scontrol show node -o`) and of a job (`squeue`)."""

from hpctl.slurm import parse

NODE = (
    "NodeName={name} Arch=x86_64 CoresPerSocket=1  CPUAlloc=0 CPUEfctv=2 CPUTot=2 CPULoad=1.50 "
    "AvailableFeatures=(null) ActiveFeatures=(null) Gres=(null) NodeAddr=127.0.0.1 "
    "NodeHostName={name} Port=40197 Version=22.05.8 OS=Linux 6.18 #1 SMP PREEMPT_DYNAMIC @0  "
    "RealMemory=1 AllocMem=0 FreeMem=20368 Sockets=2 Boards=1 State={state} ThreadsPerCore=1 "
    "TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A Partitions=all,dev  "
    "BootTime=2026-11-21T11:08:09 SlurmdStartTime=2026-11-21T11:40:41 "
    "LastBusyTime=2026-11-21T11:40:41 CfgTRES=cpu=2,mem=1M,billing=2 AllocTRES= CapWatts=n/a "
    "CurrentWatts=0 AveWatts=0 ExtSensorsJoules=n/s ExtSensorsWatts=0 ExtSensorsTemp=n/s{reason}"
)
MARK = "0123456789abcdef"
JOB = {
    "JobID": "7", "ArrayJobID": "7", "ArrayTaskID": "N/A", "HetJobID": "N/A", "HetJobOffset": "0",
    "State": "RUNNING",
    "SubmitTime": "2026-11-21T11:40:49", "StartTime": "2026-11-21T11:40:50", "EndTime": "NONE",
    "EligibleTime": "2026-11-21T11:40:49", "RestartCnt": "2", "Requeue": "1", "BatchFlag": "1",
    "BatchHost": "n1", "Partition": "all", "NodeList": "n[1-2]", "Reason": "None",
    "exit_code": "0", "UserID": "1000", "UserName": "ada", "NumNodes": "2", "NumTasks": "2",
    "NumCPUs": "2", "MinCpus": "1", "NTPerNode": "0", "OverSubscribe": "OK",
    "tres-alloc": "cpu=2,node=2,billing=2", "tres-per-job": "N/A", "tres-per-node": "N/A",
    "tres-per-task": "N/A", "tres-per-socket": "N/A", "ReqNodes": "n[8-9]",
    "Feature": "(null)", "QOS": "(null)", "PreemptTime": "N/A",
    "admin_comment": "(null)", "Comment": "(null)", "Name": "job",
}  # fmt: skip


def node_text(name: str = "n1", state: str = "IDLE", reason: str = "") -> str:
    return NODE.format(name=name, state=state, reason=reason)


def row(mark: str = MARK, **over: str) -> bytes:
    """One record as squeue prints it."""
    values = {**JOB, **{n.replace("tres_per_", "tres-per-"): value for n, value in over.items()}}
    ends = [f"{values[name]}m{mark};" for name in parse.FIELDS[:-1]]
    return "".join([*ends, f"{values[parse.FIELDS[-1]]}m{mark}.\n"]).encode(
        "utf-8", "surrogateescape"
    )


def listed(mark: str = MARK, **excluded: str) -> bytes:
    """The nodes that jobs exclude, as squeue prints them: j7="n4"."""
    rows = [f"{job[1:]}m{mark};{nodes}m{mark}.\n" for job, nodes in excluded.items()]
    return "".join(rows).encode("utf-8", "surrogateescape")
