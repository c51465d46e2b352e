"""`POST /v1/alerts`: what Prometheus finds about a node, by Alertmanager's webhook.

Closed (404) unless the configuration names a file with a bearer token. Answers 200
`{"taken": n, "resolved": n, "left_out": n}`, or `{"error": code, "message": ..., "hint": ...}`:

| status | code | meaning |
|---|---|---|
| 401 | unauthorized | no `Authorization: Bearer`, or another token |
| 413, 408 | too_large, slow_body | more than MAX_BODY bytes, or not here within 10 s |
| 400, 422 | malformed, unsupported_version, invalid_alerts | no notification of version 4 |
| 422 | unknown_node | some alerts name no node of Slurm; the others were taken |
| 503 | token_unusable, slurm_unavailable, not_stored | ours to mend: Alertmanager tries again |
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hpctl.core.model import Generation, NodeName
from hpctl.daemon import alert_wire
from hpctl.daemon.alert_book import Alert, AlertBook
from hpctl.daemon.alert_wire import Nodes, Notice
from hpctl.daemon.body import read_body
from hpctl.daemon.refusal import Refusal
from hpctl.errors import Unavailable
from hpctl.ports import Clock

log = logging.getLogger(__name__)

PATH = "/v1/alerts"
MAX_BODY = 2 * 1024 * 1024
BODY_TIMEOUT_S = 10.0
MAX_NAMED = 20
"""Unknown nodes that one answer names."""
_TOKEN_BYTES = 4096

Addresses = Callable[[], Mapping[NodeName, str]]
"""Slurm's nodes with their NodeAddr. Raises Unavailable while Slurm has not answered yet."""
GenerationOf = Callable[[NodeName], Generation | None]
"""Which generation of a node its agent spoke of last."""


class Webhook:
    """Takes notifications in. `take` blocks on files: not for an event loop's thread."""

    def __init__(
        self,
        labels: Sequence[str],
        book: AlertBook,
        addresses: Addresses,
        generation_of: GenerationOf,
        clock: Clock,
    ) -> None:
        self._labels, self._book, self._clock = tuple(labels), book, clock
        self._addresses, self._generation_of = addresses, generation_of

    def take(self, body: bytes) -> dict[str, int]:
        """The answer to a notification. Raises Refusal; the alerts that can be are taken."""
        try:
            notification = alert_wire.decode(body)
        except alert_wire.MalformedAlerts as error:
            status = 422 if isinstance(error, alert_wire.InvalidAlerts) else 400
            raise Refusal(status, error.code, str(error), error.hint) from error
        try:
            nodes = Nodes(self._addresses(), self._labels)
        except Unavailable as error:
            raise Refusal(503, "slurm_unavailable", str(error), error.hint) from error
        if notification.truncated:
            log.warning("Alertmanager's max_alerts left out %d alerts", notification.truncated)
        heard = self._clock.now()
        firing: list[Alert] = []
        resolved: list[tuple[NodeName, str]] = []
        unknown: list[Notice] = []
        for notice in notification.alerts:
            node = nodes.of(notice) if notice.name else None
            if node is None:
                unknown.append(notice)
            elif notice.status == "resolved":
                resolved.append((node, notice.fingerprint))
            else:
                firing.append(self._bound(alert_wire.alert(notice, node, heard)))
        try:
            kept, ended = self._book.take(firing, resolved)
        except OSError as error:
            raise Refusal(503, "not_stored", f"not stored: {error}") from error
        done = {"taken": kept, "resolved": ended, "left_out": len(firing) - kept}
        if unknown:
            raise self._unknown(unknown, nodes, len(notification.alerts), done)
        return done

    def _bound(self, alert: Alert) -> Alert:
        """Of the generation that is there now; of the first to come where there is none yet."""
        known = self._generation_of(alert.node)
        if known is None:
            return alert
        return Alert(alert.node, alert.id, alert.finding, alert.heard, known.instance, known.boot)

    def _unknown(
        self, unknown: Sequence[Notice], nodes: Nodes, all_of_them: int, done: dict[str, int]
    ) -> Refusal:
        named = [
            {"alertname": notice.name, "looked_at": nodes.looked_at(notice)}
            for notice in unknown[:MAX_NAMED]
        ]
        told = "; ".join(
            f"{n['alertname'] or 'an alert without alertname'}: {_shown(n['looked_at'])}"
            for n in named
        )
        return Refusal(
            422,
            "unknown_node",
            f"{len(unknown)} of {all_of_them} alerts name no node of Slurm: {told}",
            f"Give them one of the labels {', '.join(self._labels)} with a NodeName, or route only "
            "alerts of nodes here (docs/plugins.md).",
            alerts=named,
            **done,
        )


def _shown(looked_at: object) -> str:
    assert isinstance(looked_at, dict)
    return ", ".join(f"{label}={value}" for label, value in looked_at.items()) or "no such label"


class Takes(Protocol):
    """A Webhook, or who stands for one."""

    def take(self, body: bytes) -> dict[str, int]:
        """The answer to a notification. Raises Refusal."""
        ...


def routes(
    token_file: Path | None, webhook: Takes, registry: CollectorRegistry | None = None
) -> list[Route]:
    """The route for the intake's application; none where no token file is configured."""
    if token_file is None:
        return []
    registry = registry or CollectorRegistry()
    taken = Counter("hpctl_alerts", "Notifications of alerts taken whole.", registry=registry)
    refused = Counter("hpctl_alerts_refused", "Others, by code.", ["code"], registry=registry)

    async def alerts(request: Request) -> Response:
        try:
            authorization = request.headers.get("authorization", "")
            await asyncio.to_thread(_authorize, authorization, token_file)
            answer = await asyncio.to_thread(webhook.take, await _read_body(request))
        except Refusal as error:
            refused.labels(error.code).inc()
            headers = {"connection": "close"} if error.status in (401, 408, 413) else {}
            if error.status == 401:
                headers["www-authenticate"] = "Bearer"
            return JSONResponse(error.said, error.status, headers)
        taken.inc()
        return JSONResponse(answer)

    return [Route(PATH, alerts, methods=["POST"])]


def _authorize(authorization: str, token_file: Path) -> None:
    """Compare with the file's token, read each time: it may be changed while we run."""
    token = _token(token_file)
    scheme, _, given = authorization.partition(" ")
    same = hmac.compare_digest(given.strip().encode("latin-1", "replace"), token)
    if scheme.lower() != "bearer" or not same:
        raise Refusal(
            401,
            "unauthorized",
            "the request carries no bearer token, or another one",
            "Alertmanager: webhook_configs.http_config.authorization.credentials_file.",
        )


def _token(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            token = file.read(_TOKEN_BYTES).strip()
    except OSError as error:
        raise Refusal(
            503, "token_unusable", f"alerts.token_file cannot be read: {error.strerror}"
        ) from error
    if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        message = "alerts.token_file is open to everybody"
        raise Refusal(503, "token_unusable", message, f"chmod 0640 {path}")
    if len(token) < 16:
        message = "alerts.token_file holds no token of 16 characters or more"
        raise Refusal(503, "token_unusable", message, f"openssl rand -hex 32 > {path}")
    return token


def _read_body(request: Request) -> Awaitable[bytes]:
    too_large = Refusal(
        413,
        "too_large",
        f"a notification has at most {MAX_BODY} bytes",
        "Set max_alerts in Alertmanager's webhook_configs, or group_by the node.",
    )
    announced = request.headers.get("content-length", "0")
    return read_body(
        announced, request.receive, most=MAX_BODY, within_s=BODY_TIMEOUT_S, too_large=too_large
    )
