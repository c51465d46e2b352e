"""What a lifecycle script's log says of its failure, read from CloudWatch Logs.

HyperPod writes each instance's log to the group `/aws/sagemaker/Clusters/<name>/<id>`, in the
stream `LifecycleConfig/<instance group>/<instance id>`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpctl.errors import Absent, HpctlError, Unavailable
from hpctl.ports import Aws

TAIL = 300
"""Newest lines that are looked at: the script has ended, so its failure is among them."""

_OURS = re.compile(r"^hpctl lifecycle: FAILED ")
"""The last line of a run of `lifecycle_scripts/` that failed: step, node, tries and why."""

_PLATFORM = re.compile(r"^\[SageMaker\]|Lifecycle scripts? (did not|failed)", re.IGNORECASE)
"""What the platform says when the script has ended: true, and no help."""

_STEP = re.compile(r"\bstep[= :]+[\"']?(?P<step>[\w.-]+)", re.IGNORECASE)
_FAILED = re.compile(r"\b(fail(ed|ure)?|fatal|error)\b|Traceback|[A-Z]\w+(Error|Exception):", re.I)
_CLUES = re.compile(r"no such file|permission denied|not found|timed out|cannot|unable", re.I)


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Where an instance's lifecycle log is."""

    group: str
    stream: str

    def __str__(self) -> str:
        return f"{self.group} {self.stream}"


@dataclass(frozen=True, slots=True)
class FailedLine:
    """The line that says what failed, and the step it names. `unread`: why there is none.

    `unreachable`: nobody answered, and nobody will for another log either.
    """

    line: str = ""
    step: str = ""
    unread: str = ""
    unreachable: bool = False


def place(cluster_arn: str, cluster: str, group: str, instance_id: str) -> LogPlace:
    """Where the log of an instance of a group is."""
    cluster_id = cluster_arn.rpartition("/")[2]
    return LogPlace(
        f"/aws/sagemaker/Clusters/{cluster}/{cluster_id}",
        f"LifecycleConfig/{group}/{instance_id}",
    )


def failed_line(aws: Aws, where: LogPlace) -> FailedLine:
    """Read the newest lines and pick the one that tells. Never raises: the failure itself is told
    elsewhere, and a log that cannot be read must not hide it.
    """
    try:
        answer = aws.service("logs").read(
            "get_log_events",
            logGroupName=where.group,
            logStreamName=where.stream,
            limit=TAIL,
            startFromHead=False,
        )
    except Absent:
        return FailedLine(unread="the log has not reached CloudWatch Logs (yet)")
    except HpctlError as error:
        return FailedLine(unread=str(error), unreachable=isinstance(error, Unavailable))
    lines = [str(event.get("message", "")).rstrip() for event in answer.get("events", ())]
    return telling([line for line in lines if line.strip()])


def telling(lines: list[str]) -> FailedLine:
    """The line of a failed script's log that says most, searched from the end."""
    if not lines:
        return FailedLine(unread="the log is empty")
    steps = [(n, m["step"]) for n, line in enumerate(lines) if (m := _STEP.search(line))]
    for pattern in (_OURS, _FAILED, _CLUES):
        for at in range(len(lines) - 1, -1, -1):
            if pattern.search(lines[at]) and not _PLATFORM.search(lines[at]):
                step = next((name for n, name in reversed(steps) if n <= at), "")
                return FailedLine(lines[at].strip(), step)
    return FailedLine(lines[-1].strip(), steps[-1][1] if steps else "")
