"""What a deep health check of the service found."""

import re
from datetime import datetime, timedelta

from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.ports import AwsClientFactory

SKEW = timedelta(minutes=5)
"""How far a node's clock may be from the operator's."""


_VERDICT = re.compile(r"(replacement|reboot)Required:\s*(true|false)", re.IGNORECASE)


def read_health_check_recommendation(
    aws: AwsClientFactory, arn: str, cluster: str, instance: str, since: datetime
) -> tuple[str, str]:
    """Return what an instance's own log says it needs (`replacement`, `reboot` or nothing), and its
    line.

    Of lines `since` the order alone: the stream keeps what earlier checks said of the instance.

    The stream `DeepHealthCheckResults/<instance id>` is the only place for it. A log that cannot be
    read is no verdict: ("", "").
    """
    try:
        answer = aws.service("logs").read(
            "get_log_events",
            logGroupName=f"/aws/sagemaker/Clusters/{cluster}/{arn.rpartition('/')[2]}",
            logStreamName=f"DeepHealthCheckResults/{instance}",
            startTime=int((since - SKEW).timestamp() * 1000),
            limit=100,
            startFromHead=False,
        )
    except HpctlError:
        return "", ""
    for event in reversed(answer.get("events", ())):
        line = str(event.get("message", "")).strip()
        needs = {what.lower(): is_so.lower() == "true" for what, is_so in _VERDICT.findall(line)}
        if needs:
            return next((what for what in ("replacement", "reboot") if needs.get(what)), ""), line
    return "", ""
