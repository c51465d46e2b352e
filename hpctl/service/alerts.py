"""`POST /v1/alerts`: what Prometheus finds about a node, by Alertmanager's webhook.

Closed (404) unless the configuration names a file with a bearer token. Answers 200
`{"taken": n, "resolved": n, "left_out": n}`, or `{"error": code, "message": ..., "hint": ...}`:

| status | code | meaning |
|---|---|---|
| 401 | unauthorized | no `Authorization: Bearer`, or another token |
| 413, 408 | too_large, slow_body | more than MAX_BODY bytes, or not here within 10 s |
| 400, 422 | malformed, unsupported_version, invalid_alerts | no notification of version 4 |
| 422 | unknown_node | some alerts name no node of Slurm; the others were taken |
| 503 | token_unusable, slurm_unavailable, not_stored | not Alertmanager's fault: it retries |

The alerts that fire are kept by node, in memory for the loop, in a file for a restart: Alertmanager
says again only every few hours that an alert still fires, so a daemon that forgot would be blind
for as long. It speaks of a name, not of a machine: an alert counts for the generation of the node
that was there when it was last sent, and no further. A node that was rebooted or replaced starts
without it, until Alertmanager says it of the new one.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import re
import stat
import threading
from collections import Counter as Counted
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hpctl.engine.node_health import NodeHealthStore
from hpctl.toolkit.bounds import clamp_duration, convert_to_utc
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.identity import BootId, InstanceId, NodeGeneration, NodeName
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict, Finding, NodeHealth
from hpctl.vocabulary.ports import Clock
from hpctl.wire.authentication import RequestBodyLimits, RequestRefusal, read_request_body
from hpctl.wire.proved_route import BODY_TIMEOUT_S, RequestRefusalCounter

if TYPE_CHECKING:  # the intake's process has none
    from hpctl.service.node_directory import NodeAddressDirectory

log = logging.getLogger(__name__)

PATH = "/v1/alerts"
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


class AlertmanagerAlert(Struct, frozen=True):
    """One alert of a notification. What else Alertmanager says is left unread."""

    status: Literal["firing", "resolved"]
    labels: _Labels
    starts_at: Annotated[datetime, Meta(tz=True)] = msgspec.field(name="startsAt")
    fingerprint: Annotated[str, Meta(min_length=1, max_length=64)]
    annotations: _Labels = {}

    @property
    def name(self) -> str:
        """Return the alert's name, as its rule has it."""
        return self.labels.get("alertname", "")


class _AlertsVersion(Struct, frozen=True):
    version: str


class AlertmanagerNotification(Struct, frozen=True):
    """A group of alerts. `truncated` is how many Alertmanager's `max_alerts` left out."""

    alerts: Annotated[tuple[AlertmanagerAlert, ...], Meta(max_length=MAX_ALERTS)]
    truncated: Annotated[int, Meta(ge=0)] = msgspec.field(name="truncatedAlerts", default=0)


_version = msgspec.json.Decoder(_AlertsVersion)
_notification = msgspec.json.Decoder(AlertmanagerNotification)


def decode_alertmanager_notification(body: bytes) -> AlertmanagerNotification:
    """Return the notification in a body. Raises Refusal."""
    try:
        version = _version.decode(body).version
        if version != VERSION:
            text = f"version {version!r} of Alertmanager's webhook; this daemon reads {VERSION!r}"
            raise RequestRefusal(400, "unsupported_version", text)
        return _notification.decode(body)
    except msgspec.ValidationError as error:
        hint = "Point a webhook_configs url of Alertmanager 0.16 or later here."
        text = f"no notification of Alertmanager's: {error}"
        raise RequestRefusal(422, "invalid_alerts", text, hint) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestRefusal(400, "malformed", f"not JSON: {error}") from error


class AlertNodeFinder:
    """Slurm's nodes, to be found by what monitoring calls them."""

    def __init__(self, addresses: Mapping[NodeName, str], labels: Sequence[str]) -> None:
        self._names, self._labels = addresses.keys(), tuple(labels)
        self._by_address: dict[str, NodeName | None] = {}
        for name, address in addresses.items():
            known = self._by_address.setdefault(address, name)
            if known != name:
                self._by_address[address] = None  # of several: no name for any of them

    def looked_at(self, notice: AlertmanagerAlert) -> dict[str, str]:
        """Return the labels that can name a node, as this alert has them."""
        return {label: notice.labels[label] for label in self._labels if label in notice.labels}

    def of(self, notice: AlertmanagerAlert) -> NodeName | None:
        """Return the node that the first label that names one names; by name, host name or
        NodeAddr."""
        for value in self.looked_at(notice).values():
            match = _PORT.match(value)
            host = (match["v6"] or match["host"]) if match else value
            for name in (value, host, host.partition(".")[0]):
                if name in self._names:
                    return NodeName(name)
            found = self._by_address.get(host)
            if found is not None:
                return found
        return None


def make_node_alert(notice: AlertmanagerAlert, node: NodeName, heard: datetime) -> NodeAlert:
    """Return the finding that a firing alert is: `alert.<alertname>`, its severity as the code."""
    severity = notice.labels.get("severity", "")
    summary = notice.annotations.get("summary") or notice.annotations.get("description", "")
    device = next((notice.labels[key] for key in _DEVICE if notice.labels.get(key)), "")
    finding = Finding(
        f"alert.{_NO_NAME.sub('_', notice.name)[:100]}",
        DeviceVerdict.FAIL if severity.lower() in _FAIL else DeviceVerdict.WARN,
        min(convert_to_utc(notice.starts_at), heard),
        heard,
        device=_strip_control_characters(device, 256),
        code=_NO_CODE.sub("_", severity)[:64],
        detail=_strip_control_characters(summary, 256),
        evidence=_strip_control_characters(
            " ".join(f"{k}={v}" for k, v in sorted(notice.labels.items())), 1024
        ),
        clears=ClearCondition.GONE,
    )
    return NodeAlert(node, notice.fingerprint, finding, heard)


def _strip_control_characters(text: str, limit: int) -> str:
    return _CONTROL.sub(" ", text).strip()[:limit]


MAX_BODY = 2 * 1024 * 1024
MAX_NAMED = 20
"""Unknown nodes that one answer names."""
_TOKEN_BYTES = 4096


class AlertmanagerWebhook:
    """Takes notifications in. `take` blocks on files: not for an event loop's thread."""

    def __init__(
        self,
        labels: Sequence[str],
        alerts: AlertStore,
        directory: NodeAddressDirectory,
        health: NodeHealthStore,
        clock: Clock,
    ) -> None:
        """`labels`: the names of the labels that can name a node, in this order."""
        self._labels, self._alerts, self._clock = tuple(labels), alerts, clock
        self._directory, self._health = directory, health

    def take(self, body: bytes) -> dict[str, int]:
        """Return the answer to a notification. Raises Refusal; the alerts that can be are taken."""
        notification = decode_alertmanager_notification(body)
        try:
            nodes = AlertNodeFinder(self._directory.addresses(), self._labels)
        except ServiceUnavailable as error:
            raise RequestRefusal(503, "slurm_unavailable", str(error), error.hint) from error
        if notification.truncated:
            log.warning("Alertmanager's max_alerts left out %d alerts", notification.truncated)
        heard = self._clock.now()
        firing: list[NodeAlert] = []
        resolved: list[tuple[NodeName, str]] = []
        unknown: list[AlertmanagerAlert] = []
        for notice in notification.alerts:
            node = nodes.of(notice) if notice.name else None
            if node is None:
                unknown.append(notice)
            elif notice.status == "resolved":
                resolved.append((node, notice.fingerprint))
            else:
                firing.append(self._add_node_generation(make_node_alert(notice, node, heard)))
        try:
            stored = self._alerts.take(firing, resolved)
        except OSError as error:
            raise RequestRefusal(503, "not_stored", f"not stored: {error}") from error
        if stored.changed:
            self._health.touch(stored.changed, wake=True)
        left_out = len(firing) - stored.kept
        done = {"taken": stored.kept, "resolved": stored.ended, "left_out": left_out}
        if unknown:
            raise self._make_unknown_nodes_refusal(unknown, nodes, len(notification.alerts), done)
        return done

    def _add_node_generation(self, alert: NodeAlert) -> NodeAlert:
        """Of the generation that is there now; of the first to come where there is none yet, or
        where this daemon does not know: a standby hears no agent."""
        known = self._directory.find_generation(alert.node)
        return alert if known is None else _add_instance_to_alert(alert, known)

    def _make_unknown_nodes_refusal(
        self,
        unknown: Sequence[AlertmanagerAlert],
        nodes: AlertNodeFinder,
        all_of_them: int,
        done: dict[str, int],
    ) -> RequestRefusal:
        looked_at = [(notice.name, nodes.looked_at(notice)) for notice in unknown[:MAX_NAMED]]
        text = "; ".join(_describe_labels(name, labels) for name, labels in looked_at)
        return RequestRefusal(
            422,
            "unknown_node",
            f"{len(unknown)} of {all_of_them} alerts name no node of Slurm: {text}",
            f"Give them one of the labels {', '.join(self._labels)} with a NodeName, or route only "
            "alerts of nodes here (docs/plugins.md).",
            alerts=[{"alertname": name, "looked_at": labels} for name, labels in looked_at],
            **done,
        )


def make_alert_routes(
    token_file: Path | None, take: Callable[[bytes], dict[str, int]], registry: CollectorRegistry
) -> list[Route]:
    """Return the route for the intake's application; none where no token file is configured.

    `take` is a Webhook's, here or in the daemon.
    """
    if token_file is None:
        return []
    taken = Counter("hpctl_alerts", "Alert notifications accepted.", registry=registry)
    refused = RequestRefusalCounter("hpctl_alerts_refused", "Others, by code.", registry)

    async def receive_alerts(request: Request) -> Response:
        try:
            authorization = request.headers.get("authorization", "")
            await asyncio.to_thread(_check_bearer_token, authorization, token_file)
            body = await read_request_body(
                request.headers.get("content-length", "0"),
                request.receive,
                RequestBodyLimits(
                    most=MAX_BODY,
                    within_s=BODY_TIMEOUT_S,
                    too_large=f"a notification has at most {MAX_BODY} bytes",
                    hint="Set max_alerts in Alertmanager's webhook_configs, or group_by the node.",
                ),
            )
            answer = await asyncio.to_thread(take, body)
        except RequestRefusal as error:
            refused.add(error.code)
            headers = {"connection": "close"} if error.status in (401, 408, 413) else {}
            if error.status == 401:
                headers["www-authenticate"] = "Bearer"
            return JSONResponse(error.body, error.status, headers)
        taken.inc()
        return JSONResponse(answer)

    return [Route(PATH, receive_alerts, methods=["POST"])]


def _check_bearer_token(authorization: str, token_file: Path) -> None:
    """Compare with the file's token, read each time: it may be changed while we run."""
    token = read_secret_file(token_file, "alerts.token_file")
    scheme, _, given = authorization.partition(" ")
    same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), token)
    if scheme.lower() != "bearer" or not same:
        raise RequestRefusal(
            401,
            "unauthorized",
            "the request carries no bearer token, or another one",
            "Alertmanager: webhook_configs.http_config.authorization.credentials_file.",
        )


def read_secret_file(path: Path, key: str) -> bytes:
    """Return a secret that a key of the configuration names. Raises Refusal, which says the fix."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            token = file.read(_TOKEN_BYTES).strip()
    except OSError as error:
        raise RequestRefusal(
            503, "token_unusable", f"{key} cannot be read: {error.strerror}"
        ) from error
    if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        message = f"{key} is open to other users"
        raise RequestRefusal(503, "token_unusable", message, f"chmod 0640 {path}")
    if len(token) < 16:
        message = f"{key} holds no token of 16 characters or more"
        raise RequestRefusal(503, "token_unusable", message, f"openssl rand -hex 32 > {path}")
    return token


CHECKS = ("alert.",)
MAX_A_NODE = 32
MOST_ALERTS = 5000


class NodeAlert(msgspec.Struct, frozen=True):
    """One alert that fires on one node. `id` is Alertmanager's fingerprint.

    `instance` and `boot` say of which generation; None until the node has one.
    """

    node: NodeName
    id: str
    finding: Finding
    heard: datetime
    instance: InstanceId | None = None
    boot: BootId | None = None


class StoredAlertCounts(Struct, frozen=True):
    """What came of a notification."""

    kept: int
    """Alerts that fire and were kept."""
    ended: int
    """Alerts that were resolved."""
    changed: frozenset[NodeName]
    """Nodes whose findings are others now."""


_alerts = msgspec.json.Decoder(tuple[NodeAlert, ...])
_Key = tuple[NodeName, str]


class AlertStore:
    """The alerts. `take` runs on the intake's threads, `add_findings` on any."""

    checks: tuple[str, ...] = CHECKS

    def __init__(self, path: Path, keep_s: float, clock: Clock) -> None:
        """Start from what a former daemon knew. What was not repeated for `keep_s` is dropped."""
        self._path, self._keep, self._clock = path, clamp_duration(keep_s), clock
        self._lock = threading.Lock()
        self._alerts = {(a.node, a.id): a for a in load_alerts(path)}

    def take(self, firing: Iterable[NodeAlert], resolved: Iterable[_Key]) -> StoredAlertCounts:
        """Take alerts in, durably.

        What is beyond MAX_A_NODE or MOST_ALERTS is left out. Raises OSError where they cannot be
        stored; nothing has changed then.
        """
        with self._lock:
            fresh = self._list_firing_alerts(self._clock.now())
            ended = sum(fresh.pop(key, None) is not None for key in resolved)
            kept, held = 0, Counted(node for node, _ in fresh)
            for alert in firing:
                old = fresh.get((alert.node, alert.id))
                if old is None:
                    if held[alert.node] >= MAX_A_NODE or len(fresh) >= MOST_ALERTS:
                        continue
                    held[alert.node] += 1
                fresh[alert.node, alert.id] = (
                    alert if old is None else _merge_repeated_alert(old, alert)
                )
                kept += 1
            if fresh != self._alerts:
                self._save_alerts(fresh.values())
            news = _list_alert_identities(fresh) ^ _list_alert_identities(self._alerts)
            self._alerts = fresh
        return StoredAlertCounts(kept, ended, frozenset(node for node, _ in news))

    def add_findings(self, health: dict[NodeName, NodeHealth]) -> None:
        """Add the alerts of each node's own generation to its findings, in place.

        A node whose agent was never heard has no generation that could be judged.
        """
        now = self._clock.now()
        with self._lock:
            if not self._alerts:
                return
            self._alerts = self._list_firing_alerts(now)
            for key, alert in self._alerts.items():
                known = health.get(alert.node)
                if known is None:
                    continue
                generation = known.generation
                if alert.instance is None:
                    alert = _add_instance_to_alert(alert, generation)
                    self._alerts[key] = alert
                if (alert.instance, alert.boot) == (generation.instance, generation.boot):
                    health[alert.node] = replace(known, findings=(*known.findings, alert.finding))

    def _list_firing_alerts(self, now: datetime) -> dict[_Key, NodeAlert]:
        return {key: a for key, a in self._alerts.items() if now - a.heard < self._keep}

    def _save_alerts(self, alerts: Iterable[NodeAlert]) -> None:
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(tuple(alerts)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


def load_alerts(path: Path) -> tuple[NodeAlert, ...]:
    """Return what the file of a daemon holds; nothing where it cannot be read: they are sent
    again."""
    try:
        return _alerts.decode(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("%s cannot be read, its alerts are missed: %s", path, error)
        return ()


def _describe_labels(name: str, labels: Mapping[str, str]) -> str:
    """Return an alert's name and the labels of it that can name a node."""
    listed = ", ".join(f"{label}={value}" for label, value in labels.items())
    return f"{name or 'an alert without alertname'}: {listed or 'no such label'}"


def _merge_repeated_alert(old: NodeAlert, new: NodeAlert) -> NodeAlert:
    """Said again: counted, and of the generation that is there now."""
    first = min(old.finding.first, new.finding.first)
    count = old.finding.count + 1
    return replace(new, finding=replace(new.finding, first=first, count=count))


def _add_instance_to_alert(alert: NodeAlert, of: NodeGeneration) -> NodeAlert:
    return replace(alert, instance=of.instance, boot=of.boot)


def _list_alert_identities(alerts: Mapping[_Key, NodeAlert]) -> set[tuple[NodeName, object]]:
    return {(key[0], (key[1], a.instance, a.boot, a.finding.verdict)) for key, a in alerts.items()}
