"""Alertmanager's webhook, version 4 of its JSON, and which node of Slurm an alert is about."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from hpctl.core.bounds import in_utc
from hpctl.core.model import Clears, Finding, NodeName, Verdict
from hpctl.daemon.alert_book import Alert
from hpctl.errors import HpctlError

VERSION = "4"
MAX_ALERTS = 2000
"""Alerts of one notification."""
_FAIL = frozenset({"critical", "error", "page", "fatal", "emergency", "alert"})
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_NO_CODE = re.compile(r"[^A-Za-z0-9_.:+-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_PORT = re.compile(r"\A(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^:]*))(?::\d{1,5})?\Z")
_DEVICE = ("device", "gpu", "disk", "mountpoint")
"""The labels that say which part of the node it is, in this order."""

_Labels = Annotated[dict[str, str], Meta(max_length=64)]


class MalformedAlerts(HpctlError):
    """The bytes are no notification of Alertmanager's."""

    code = "malformed"


class InvalidAlerts(MalformedAlerts):
    """JSON, but not of the shape of version 4; the message names the place."""

    code = "invalid_alerts"


class UnsupportedAlerts(MalformedAlerts):
    """Another version of Alertmanager's webhook."""

    code = "unsupported_version"


class Notice(Struct, frozen=True):
    """One alert of a notification. What else Alertmanager says is left unread."""

    status: Literal["firing", "resolved"]
    labels: _Labels
    starts_at: Annotated[datetime, Meta(tz=True)] = msgspec.field(name="startsAt")
    fingerprint: Annotated[str, Meta(min_length=1, max_length=64)]
    annotations: _Labels = {}

    @property
    def name(self) -> str:
        """The alert's name, as its rule has it."""
        return self.labels.get("alertname", "")


class _Version(Struct, frozen=True):
    version: str


class Notification(Struct, frozen=True):
    """A group of alerts. `truncated` is how many Alertmanager's `max_alerts` left out."""

    alerts: Annotated[tuple[Notice, ...], Meta(max_length=MAX_ALERTS)]
    truncated: Annotated[int, Meta(ge=0)] = msgspec.field(name="truncatedAlerts", default=0)


_version = msgspec.json.Decoder(_Version)
_notification = msgspec.json.Decoder(Notification)


def decode(body: bytes) -> Notification:
    """The notification in a body. Raises MalformedAlerts or one of its kinds."""
    try:
        version = _version.decode(body).version
        if version != VERSION:
            raise UnsupportedAlerts(
                f"version {version!r} of Alertmanager's webhook; this daemon reads {VERSION!r}"
            )
        return _notification.decode(body)
    except msgspec.ValidationError as error:
        raise InvalidAlerts(
            f"no notification of Alertmanager's: {error}",
            "Point a webhook_configs url of Alertmanager 0.16 or later here.",
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAlerts(f"not JSON: {error}") from error


class Nodes:
    """Slurm's nodes, to be found by what monitoring calls them."""

    def __init__(self, addresses: Mapping[NodeName, str], labels: Sequence[str]) -> None:
        self._names, self._labels = addresses.keys(), tuple(labels)
        self._by_address: dict[str, NodeName | None] = {}
        for name, address in addresses.items():
            known = self._by_address.setdefault(address, name)
            if known != name:
                self._by_address[address] = None  # of several: no name for any of them

    def looked_at(self, notice: Notice) -> dict[str, str]:
        """The labels that can name a node, as this alert has them."""
        return {label: notice.labels[label] for label in self._labels if label in notice.labels}

    def of(self, notice: Notice) -> NodeName | None:
        """The node that the first label that names one names; by name, host name or NodeAddr."""
        for value in self.looked_at(notice).values():
            match = _PORT.match(value)
            host = (match["v6"] or match["host"]) if match else value
            for name in (value, host, host.partition(".")[0]):
                if name in self._names:
                    return NodeName(name)
            if (found := self._by_address.get(host)) is not None:
                return found
        return None


def alert(notice: Notice, node: NodeName, heard: datetime) -> Alert:
    """The finding that a firing alert is: `alert.<alertname>`, its severity as the code."""
    severity = notice.labels.get("severity", "")
    words = notice.annotations.get("summary") or notice.annotations.get("description", "")
    device = next((notice.labels[key] for key in _DEVICE if notice.labels.get(key)), "")
    finding = Finding(
        f"alert.{_NO_NAME.sub('_', notice.name)[:100]}",
        Verdict.FAIL if severity.lower() in _FAIL else Verdict.WARN,
        min(in_utc(notice.starts_at), heard),
        heard,
        device=_plain(device, 256),
        code=_NO_CODE.sub("_", severity)[:64],
        detail=_plain(words, 256),
        evidence=_plain(" ".join(f"{k}={v}" for k, v in sorted(notice.labels.items())), 1024),
        clears=Clears.GONE,
    )
    return Alert(node, notice.fingerprint, finding, heard)


def _plain(text: str, limit: int) -> str:
    return _CONTROL.sub(" ", text).strip()[:limit]
