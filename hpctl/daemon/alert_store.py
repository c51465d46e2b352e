"""The alerts that fire, by node: in memory for the loop, in a file for a restart.

Alertmanager says again only every few hours that an alert still fires, so a daemon that forgot
would be blind for as long. It speaks of a name, not of a machine: an alert counts for the
generation of the node that was there when it was last said, and no further. A node that was
rebooted or replaced starts without it, until Alertmanager says it of the new one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import msgspec

from hpctl.core.bounds import span
from hpctl.core.model import BootId, Finding, Health, InstanceId, NodeName
from hpctl.daemon.node_health import NodeHealthStore
from hpctl.ports import Clock

log = logging.getLogger(__name__)

CHECKS = ("alert.",)
MAX_A_NODE = 32
MAX_ALERTS = 5000


class Alert(msgspec.Struct, frozen=True):
    """One alert that fires on one node. `id` is Alertmanager's fingerprint.

    `instance` and `boot` say of which generation; None until the node has one.
    """

    node: NodeName
    id: str
    finding: Finding
    heard: datetime
    instance: InstanceId | None = None
    boot: BootId | None = None


_alerts = msgspec.json.Decoder(tuple[Alert, ...])
_Key = tuple[NodeName, str]


class AlertStore:
    """The alerts. `take` runs on the intake's threads, `add_to` on any."""

    checks: tuple[str, ...] = CHECKS

    def __init__(
        self,
        path: Path,
        keep_s: float,
        clock: Clock,
        health: NodeHealthStore,
    ) -> None:
        """Start from what a former daemon knew. What was not repeated for `keep_s` is dropped."""
        self._path, self._keep = path, span(keep_s)
        self._clock, self._health = clock, health
        self._lock = threading.Lock()
        self._alerts = {(a.node, a.id): a for a in recall(path)}

    def take(self, firing: Iterable[Alert], resolved: Iterable[_Key]) -> tuple[int, int]:
        """Take them in, durably; how many fire and were kept, and how many were ended.

        What is beyond MAX_A_NODE or MAX_ALERTS is left out. Raises OSError where they cannot be
        stored; nothing has changed then.
        """
        with self._lock:
            fresh = self._still(self._clock.now())
            ended = sum(fresh.pop(key, None) is not None for key in resolved)
            kept, held = 0, Counter(node for node, _ in fresh)
            for alert in firing:
                old = fresh.get((alert.node, alert.id))
                if old is None:
                    if held[alert.node] >= MAX_A_NODE or len(fresh) >= MAX_ALERTS:
                        continue
                    held[alert.node] += 1
                fresh[alert.node, alert.id] = alert if old is None else _again(old, alert)
                kept += 1
            if fresh != self._alerts:
                self._save(fresh.values())
            news = _named(fresh) ^ _named(self._alerts)
            self._alerts = fresh
        if news:
            self._health.touch({name[0] for name in news}, wake=True)
        return kept, ended

    def add_to(self, health: dict[NodeName, Health]) -> None:
        """Add the alerts of each node's own generation to its findings, in place.

        A node whose agent was never heard has no generation that could be judged.
        """
        now = self._clock.now()
        with self._lock:
            if not self._alerts:
                return
            self._alerts = self._still(now)
            for key, alert in self._alerts.items():
                known = health.get(alert.node)
                if known is None:
                    continue
                generation = known.generation
                if alert.instance is None:
                    alert = _bound(alert, generation.instance, generation.boot)
                    self._alerts[key] = alert
                if (alert.instance, alert.boot) == (generation.instance, generation.boot):
                    health[alert.node] = replace(known, findings=(*known.findings, alert.finding))

    def _still(self, now: datetime) -> dict[_Key, Alert]:
        return {key: a for key, a in self._alerts.items() if now - a.heard < self._keep}

    def _save(self, alerts: Iterable[Alert]) -> None:
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("wb") as file:
            file.write(msgspec.json.encode(tuple(alerts)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


def recall(path: Path) -> tuple[Alert, ...]:
    """What the file of a daemon holds; nothing where it cannot be read: alerts are said again."""
    try:
        return _alerts.decode(path.read_bytes())
    except FileNotFoundError:
        return ()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        log.warning("%s cannot be read, its alerts are missed: %s", path, error)
        return ()


def _again(old: Alert, new: Alert) -> Alert:
    """Said again: counted, and of the generation that is there now."""
    first = min(old.finding.first, new.finding.first)
    count = old.finding.count + 1
    return msgspec.structs.replace(new, finding=replace(new.finding, first=first, count=count))


def _bound(alert: Alert, instance: InstanceId, boot: BootId) -> Alert:
    return msgspec.structs.replace(alert, instance=instance, boot=boot)


def _named(alerts: Mapping[_Key, Alert]) -> set[tuple[NodeName, object]]:
    return {(key[0], (key[1], a.instance, a.boot, a.finding.verdict)) for key, a in alerts.items()}
