"""Check `host.spot`: a spot instance that EC2 is about to reclaim."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckResultUnknownError,
    DeviceAbsentError,
    Judged,
    Limits,
    make_fail_observation,
)

if TYPE_CHECKING:
    from http.client import HTTPConnection


# A spot instance that EC2 is about to reclaim: two minutes' notice, by its metadata service.
#
# `spot/instance-action` answers 404 until there is a notice, and then the action and its time.
# Asked by IMDSv2 (a token first), on the link-local address, and only where agent.yaml has
# `expected: {spot: true}`: elsewhere no request is made. A metadata service that does not answer is
# UNKNOWN, which is not a notice.

TOKEN, ACTION = "/latest/api/token", "/latest/meta-data/spot/instance-action"


TOKEN_S = 21600
"""How long a token is valid: IMDSv2's maximum."""


TIMEOUT_S = 1.0


LARGEST = 4096


class SpotInterruptionNotice(Struct, frozen=True):
    """What the metadata service answered; no action: there is no notice."""

    action: str = ""
    at: str = ""
    raw: str = ""


class Ec2MetadataSessionToken:
    """The session's token, kept between runs."""

    value = ""


def fetch_spot_interruption_notice(machine: CheckedMachine) -> SpotInterruptionNotice:
    """Ask for a notice. Raises DeviceAbsentError where spot is not expected,
    CheckResultUnknownError without an answer."""
    if not machine.expected.spot:
        raise DeviceAbsentError("not expected to be a spot instance")
    # Only a spot instance loads the module: two megabytes.
    from http.client import HTTPConnection, HTTPException

    place = urlsplit(machine.expected.metadata_url)
    connection = HTTPConnection(place.hostname or "", place.port or 80, timeout=TIMEOUT_S)
    try:
        status, body = _request_spot_instance_action(connection)
    except (OSError, HTTPException) as error:
        Ec2MetadataSessionToken.value = ""
        raise CheckResultUnknownError(f"the metadata service does not answer: {error}") from error
    finally:
        connection.close()
    if status == 404:
        return SpotInterruptionNotice()
    if status != 200:
        raise CheckResultUnknownError(f"the metadata service answered {status}")
    return _parse_spot_instance_action(body)


def _request_spot_instance_action(connection: HTTPConnection) -> tuple[int, str]:
    """Return the answer, with a fresh token where the kept one is no longer valid."""
    for _ in range(2):
        if not Ec2MetadataSessionToken.value:
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            connection.request("PUT", TOKEN, headers=lifetime)
            answer = connection.getresponse()
            token = answer.read(LARGEST).decode("ascii", "replace")
            if answer.status != 200:
                raise CheckResultUnknownError(
                    f"the metadata service gives no token: {answer.status}"
                )
            Ec2MetadataSessionToken.value = token
        connection.request(
            "GET", ACTION, headers={"X-aws-ec2-metadata-token": Ec2MetadataSessionToken.value}
        )
        answer = connection.getresponse()
        body = answer.read(LARGEST).decode("utf-8", "replace")
        if answer.status != 401:
            return answer.status, body
        Ec2MetadataSessionToken.value = ""
    return 401, ""


def _parse_spot_instance_action(body: str) -> SpotInterruptionNotice:
    try:
        notice = json.loads(body)
        return SpotInterruptionNotice(
            str(notice["action"]), str(notice.get("time", "")), " ".join(body.split())
        )
    except (ValueError, KeyError, TypeError) as error:
        raise CheckResultUnknownError(f"the notice cannot be read: {body[:200]!r}") from error


def judge_spot_interruption_notice(
    seen: SpotInterruptionNotice, before: SpotInterruptionNotice | None, limits: Limits
) -> Judged:
    """Return `interruption` for any action on the instance: its jobs end in all cases."""
    if seen.action:
        when = f" at {seen.at}" if seen.at else ""
        yield make_fail_observation(
            "interruption", "", f"EC2 will {seen.action} the instance{when}", seen.raw
        )
