"""The commands of `hpctl cluster` that look and order, letter by letter, and their exit codes."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from io import StringIO

import pytest
from rich.console import Console

from hpctl.cli.cluster.events import ClusterEventsView, EventLine, draw, folded, lines
from hpctl.clusters.events import ClusterEvent
from hpctl.core.compat import UTC
from tests.cli.conftest import Head
from tests.cli.test_golden import compare

LIVE, TWO = "ip-10-1-0-[2-3]", "ip-10-1-0-[1-2]"
AT_ONCE = ("--yes", "--no-wait", "--now", "--direct")
COMMANDS: dict[str, tuple[int, tuple[str, ...]]] = {
    "cluster-list": (1, ("list",)),
    "cluster-describe": (1, ("describe",)),
    "cluster-nodes": (0, ("nodes",)),
    "cluster-nodes-details": (0, ("nodes", "--details", "--state", "drain")),
    "cluster-events": (0, ("events",)),
    "cluster-replace-dry": (0, ("replace", LIVE, "--dry-run")),
    "cluster-replace-refused": (1, ("replace", "head-1", "i-0fa11ed0000000010", "ip-10-1-0-4")),
    "cluster-replace": (1, ("replace", TWO, *AT_ONCE)),
    "cluster-delete-dry": (0, ("delete-nodes", "i-00000000000000003", "--dry-run")),
    "cluster-software-update": (0, ("software-update", "--batch", "10%", "--dry-run")),
    "cluster-health-check": (0, ("health-check", LIVE, "--dry-run")),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _ana(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hpctl.cli.cluster.node_orders.invoking_user", lambda: "ana")
    monkeypatch.delenv("HPCTL_CLUSTER", raising=False)
    monkeypatch.setenv("SAGEMAKER_RESOURCE_CONFIG_PATH", "/nonexistent")


@pytest.mark.parametrize("name", COMMANDS)
def test_text_and_json_are_as_before(history: Head, name: str) -> None:
    code, args = COMMANDS[name]
    result = history.run("cluster", *args)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == code, result.output
    compare(f"{name}.txt", result.stdout)
    if "--dry-run" in args:
        assert result.stdout.endswith("\nDry run: nothing was done.\n")
    assert [line for line in result.stdout.splitlines() if len(line) > 80 or line[-1:] == " "] == []
    history.aws.sagemaker.checks = 0
    compare(f"{name}.json", history.run("cluster", *args, "--json").stdout)


BEGUN = datetime(2026, 1, 1, tzinfo=UTC)


def drawn(events: tuple[EventLine, ...], width: int = 80, total: int = 0) -> str:
    out = StringIO()
    draw(Console(file=out, width=width), ClusterEventsView(BEGUN, "llm", events, total))
    return " ".join(out.getvalue().split())


def test_a_failure_that_repeats_is_told_once() -> None:
    one = ClusterEvent("e", BEGUN, "Error", "Instance", "h100", "i-1", "failed", failure="no disk")
    text = drawn((EventLine("", one),) * 3)
    assert (text.count("no disk"), text.count("as above")) == (1, 2)


def test_a_node_that_is_tried_again_and_again_says_it_in_one_line() -> None:
    text, tries = "script of EC2InstanceId {} has Failed", []
    for n in range(40):
        gone, at = f"i-{n:017x}", BEGUN + timedelta(minutes=n)
        one = ClusterEvent(f"a{n:02}", at, "Info", "Instance", "h100", gone, "Instance launched.")
        said = {"id": f"b{n:02}", "level": "Error", "text": text.format(gone), "failure": "no disk"}
        tries += [one, replace(one, **said)]
    other = replace(tries[1], id="c", group="a100", at=BEGUN + timedelta(hours=2))
    shown = folded(lines([*tries, other], []))
    assert [(line.count, len(line.instances), line.event.id) for line in shown] == [
        (40, 40, "a39"),
        (40, 40, "b39"),
        (1, 1, "c"),
    ]
    told = drawn(shown, 100, 81)
    assert "40 times of 40 instances, first at 2026-01-01 00:00:00" in told
    assert "81 events, repeats folded: --all shows each" in told
