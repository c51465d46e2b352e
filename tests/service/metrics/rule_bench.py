"""Series as promtool's unit tests take them, over those of a healthy head node, and what of its
answers the tests here ask for."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec import Struct
from prometheus_client import CollectorRegistry

from docgen.alerts import ALERTS, RECORDS
from hpctl.service.metrics import DaemonMetrics
from hpctl.vocabulary.policy import RecoveryPolicy
from tests.fakes.values import view_of
from tests.process import promtool

Labels = tuple[tuple[str, str], ...]
_SERIES = re.compile(r"\A([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\Z")
_LABEL = re.compile(r'(\w+)="([^"]*)"')
_NAMED = re.compile(r"\b(?:up\b|hpctl_\w+)")
GAUGES_OF_TIME = ("hpctl_time_seconds",)


class Series(Struct, frozen=True, order=True):
    """The name of one series: a metric and its labels in order."""

    metric: str
    labels: Labels

    def __str__(self) -> str:
        shown = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.metric}{{{shown}}}"


def parse(text: str) -> Series:
    """Read a series; one of the daemon's without `instance` is head node a's."""
    found = _SERIES.match(text)
    assert found, text
    labels = dict(_LABEL.findall(found[2] or ""))
    of_daemon = found[1].startswith("hpctl_") and not found[1].startswith("hpctl_agent_")
    if of_daemon:
        labels = {"instance": "a", "job": "hpctl", **labels}
    return Series(found[1], tuple(sorted(labels.items())))


def list_used() -> frozenset[str]:
    """The metrics that rules name."""
    texts = [*(alert.expr for alert in ALERTS), *RECORDS.values()]
    return frozenset(name for text in texts for name in _NAMED.findall(text))


def read(registry: CollectorRegistry, used: frozenset[str], **extra: str) -> dict[Series, float]:
    """The samples of a registry whose metrics are used, as head node a's."""
    found = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name in used:
                labels = {"instance": "a", "job": "hpctl", **sample.labels, **extra}
                found[Series(sample.name, tuple(sorted(labels.items())))] = sample.value
    return found


def healthy_head() -> dict[Series, float]:
    """A head node whose daemon has run one cycle over four nodes that are well."""
    made = DaemonMetrics()
    made.cycle(0.1, view_of(nodes=4), RecoveryPolicy())
    made.take_troubles(dict.fromkeys(("configuration", "notify", "page", "lock"), ""))
    found = read(made.registry, list_used())
    found[parse("hpctl_leader")] = 1.0
    found[parse("hpctl_cycle_age_seconds")] = 5.0
    found[parse("hpctl_state_dir_free_ratio")] = 0.5
    found[parse('up{job="hpctl",instance="a"}')] = 1.0
    return found


def expand(values: object, length: int) -> list[float | str | None]:
    """Values as promtool writes them, one a sample: `stale`, `_` (None), `0x5` (five of them),
    `0+60x5`. What ends without `x` goes on to the end."""
    found: list[float | str | None] = []
    words = str(values).split()
    for number, word in enumerate(words):
        last = number == len(words) - 1
        pattern = re.match(r"\A(_|stale|-?[\d.]+)([+-][\d.]+)?(?:x(\d+))?\Z", word)
        assert pattern, word
        count = int(pattern[3]) if pattern[3] else (length - len(found) if last else 1)
        for turn in range(count):
            if pattern[1] in ("_", "stale"):
                found.append("stale" if pattern[1] == "stale" and turn == 0 else None)
            else:
                found.append(float(pattern[1]) + turn * float(pattern[2] or 0.0))
    if len(found) < length:
        found += [found[-1]] * (length - len(found))
    return found[:length]


def write(values: Sequence[float | str | None]) -> str:
    """The same in promtool's words, equal ones in a row together."""
    words: list[str] = []
    run, count = values[0], 0
    for value in [*values, object()]:
        if value == run:
            count += 1
            continue
        if run == "stale":
            words += ["stale"] * count
        elif run is None:
            words.append(f"_x{count}")
        else:
            words.append(f"{run:.10g}" if count == 1 else f"{run:.10g}x{count - 1}")
        run, count = value, 1  # type: ignore[assignment]
    return " ".join(words)


def interrupt(
    series: dict[Series, list[float | str | None]], down: Iterable[Sequence[int]]
) -> None:
    """Have head node a not answer for these samples."""
    for begins, ends in down:
        for name, values in series.items():
            if ("instance", "a") not in name.labels or ("job", "hpctl") not in name.labels:
                continue
            for turn in range(begins, ends):
                silent = "stale" if turn == begins else None
                values[turn] = 0.0 if name.metric == "up" else silent


def lay_out(
    case: Mapping[str, Any], length: int, down: Iterable[Sequence[int]] = ()
) -> dict[Series, list[float | str | None]]:
    """All series of a case: a healthy head node's, and what the case says."""
    every = 60.0 * case.get("every", 1)
    said = {parse(name): values for name, values in case.get("series", {}).items()}
    found: dict[Series, list[float | str | None]] = {}
    for name, value in healthy_head().items():
        found[name] = [value] * length
        if name.metric in GAUGES_OF_TIME:
            found[name] = [every * turn for turn in range(length)]
    for name, values in said.items():
        found[name] = expand(values, length)
    interrupt(found, [*case.get("down", ()), *down])
    return found


class Check(Struct, frozen=True):
    """A query at a time, in minutes, and the samples that it must answer."""

    at: int
    query: str
    answer: Mapping[str, float]


def open_at(alert: str, at: int, count: int) -> Check:
    """So many alerts of this name are open."""
    query = f'sum by (alertname) (ALERTS{{alertname="{alert}",alertstate="firing"}})'
    return Check(at, query, {f'{{alertname="{alert}"}}': count} if count else {})


def opened(until: int, minutes: int, every: int, expected: Mapping[str, int]) -> Check:
    """How often each alert has opened in so many minutes; HpctlWatchdog is always open.

    promtool loads 10,000 samples for a query and no more: a day, at one a minute.
    """
    firing = 'ALERTS{alertstate="firing",alertname!="HpctlWatchdog"}'
    begun = f"({firing} unless {firing} offset {every}m)[{minutes}m:{every}m]"
    counts = f"sum by (alertname) (count_over_time({begun}))"
    answer = {f'{{alertname="{name}"}}': times for name, times in expected.items()}
    return Check(until, counts, answer)


def make_test(
    name: str,
    series: Mapping[Series, Sequence[float | str | None]],
    every: int,
    checks: Iterable[Check],
    texts: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """One test of a file of promtool's."""
    asked = [
        {
            "expr": check.query,
            "eval_time": f"{check.at}m",
            "exp_samples": [{"labels": k, "value": v} for k, v in check.answer.items()],
        }
        for check in checks
    ]
    given = [{"series": str(one), "values": write(values)} for one, values in series.items()]
    return {
        "name": name,
        "interval": f"{every}m",
        "input_series": given,
        "promql_expr_test": asked,
        "alert_rule_test": list(texts),
    }


def judge(place: Path, rules: Path, every: int, tests: Sequence[Mapping[str, Any]]) -> None:
    """Have promtool run the tests."""
    file = place / f"{every}.yml"
    order = {"group_eval_order": ["hpctl-records", "hpctl"], "evaluation_interval": f"{every}m"}
    document = {"rule_files": [str(rules)], **order, "tests": list(tests)}
    file.write_text(yaml.safe_dump(document, sort_keys=False, width=1_000_000))
    promtool("test", "rules", file, timeout=600)
