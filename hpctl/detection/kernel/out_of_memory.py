"""Read the line that the out-of-memory killer prints for each kill (mm/oom_kill.c, Linux 5.0).

Not a pattern of a row: what the line means depends on whether the process that was killed is a
daemon that the cluster needs, which its name, its owner and its control group show together, and on
the job.

    oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job_12,mems_allowed=0-1,
        oom_memcg=/slurm/uid_1000/job_12,task_memcg=/slurm/uid_1000/job_12/step_0/task_0,
        task=python,pid=4321,uid=1000

The constraint names what ran out: a control group (the job's own limit: its fault), the memory
nodes that a task may use, or the machine. A daemon among the killed is a fault of the node,
whatever the constraint. A process that only has such a name (a user's own `hpctl run`, too) is
distinguished by its owner and by the control group that it is in.
"""

import re

from msgspec.structs import replace

from hpctl.detection.kernel.line import KernelFaultLine, make_kernel_fault_line
from hpctl.detection.kmsg import KernelRecord
from hpctl.detection.slurm_jobs import parse_cgroup_job_id

OOM_CHECK = "kernel.oom"


_KILL = re.compile(
    r"oom-kill:constraint=CONSTRAINT_(?P<constraint>[A-Z_]+),"
    r".*?task_memcg=(?P<cgroup>/.*?),task=(?P<task>.{0,16}),pid=(?P<pid>\d{1,10}),uid=(?P<uid>\d+)\s*$"
)


_MARKS = (",task_memcg=/", ",task=")
"""Keys that occur once in a line, unless a user's control group or process has such a name."""


_OOM_CODES = {"NONE": "node", "CPUSET": "numa", "MEMORY_POLICY": "numa"}


_FEW = 8
"""No real line has more keys than this, and more would be slow to match."""


_ROOTS = ("slurmd", "slurmstepd", "hpctl")


_MUNGED = "munged"


_PEOPLE = "/user.slice/"
"""The control group in which systemd puts the processes of users."""


def parse_oom_kill_line(record: KernelRecord) -> KernelFaultLine | None:
    """Return which constraint, which job, and whether a daemon of the cluster was killed."""
    text = record.text
    if not text.startswith("oom-kill:") or any(text.count(mark) > _FEW for mark in _MARKS):
        return None
    match = _KILL.match(text)
    if match is None:
        return None
    if any(text.count(mark) > 1 for mark in _MARKS):
        # The owner of that process is ambiguous: neither a daemon nor a job is named.
        memcg = match["constraint"] == "MEMCG"
        return make_kernel_fault_line(
            OOM_CHECK, "cgroup" if memcg else "node", record, pid=match["pid"]
        )
    job = parse_cgroup_job_id(match["cgroup"])
    found = make_kernel_fault_line(
        OOM_CHECK, _choose_oom_finding_code(match, job), record, pid=match["pid"]
    )
    return replace(found, job=job, detail=match["task"] if found.code == "daemon" else "")


def _choose_oom_finding_code(match: re.Match[str], job: str) -> str:
    if _is_cluster_daemon_process(
        match["task"], root=match["uid"] == "0", cgroup=match["cgroup"], job=job
    ):
        return "daemon"
    if match["constraint"] == "MEMCG":
        return "job" if job else "cgroup"
    return _OOM_CODES.get(match["constraint"], "node")


def _is_cluster_daemon_process(task: str, *, root: bool, cgroup: str, job: str) -> bool:
    if task.startswith(_MUNGED):  # a separate user, whose number is the site's choice
        return not job and not cgroup.startswith(_PEOPLE)
    # only slurmstepd is in its job's control group as root; a user's process there is not root's.
    return root and task.startswith(_ROOTS) and (not job or task == "slurmstepd")
