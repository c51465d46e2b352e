"""The fault table: each check sound, each code with its row, and what may touch a node."""

from collections import Counter
from datetime import datetime

import pytest

from hpctl.agent.checks import (
    check_efa,
    check_host_processes,
    check_host_services,
    check_neuron,
    check_rdma,
)
from hpctl.agent.runner import AGENT_CHECKS
from hpctl.core.compat import UTC
from hpctl.core.faults.row import CheckSpec
from hpctl.core.faults.table import CHECKS, KERNEL_CHECKS, ROWS, rows_of
from hpctl.core.model import BootId, Clears, Finding, InstanceId, NodeName, Report, Verdict
from hpctl.protocol import reports as wire

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ALL = (*CHECKS, *KERNEL_CHECKS, AGENT_CHECKS)
FINDS_NOTHING = {"gpu.gauges"}
OTHERS = {"hma", "agent.plugins", "node", "slurm", "cloud", "agent", "peer", "history", "check"}
"""Who finds what no check of the agent's table does."""
"""The checks of which at least one code touches a node."""


def test_every_name_is_there_once() -> None:
    assert [n for n, count in Counter(s.name for s in ALL).items() if count > 1] == []


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_the_head_node_takes_its_findings(spec: CheckSpec) -> None:
    finding = Finding(spec.name, Verdict.FAIL, NOW, NOW, clears=spec.clears)
    report = Report(NodeName("n"), InstanceId("i"), BootId("b"), 1, NOW, NOW, (finding,))
    assert wire.decode(wire.encode(report)).findings == (finding,)


@pytest.mark.parametrize("spec", [*CHECKS, *KERNEL_CHECKS], ids=lambda spec: spec.name)
def test_a_check_is_whole(spec: CheckSpec) -> None:
    n, m = spec.seen
    assert 1 <= n <= m
    assert spec.every_s >= 1 or spec in KERNEL_CHECKS
    assert spec.what
    assert spec.source
    assert all(limit.unit and limit.why for limit in spec.limits.values())
    assert rows_of(spec.name) or spec.name in FINDS_NOTHING
    # Else it would be gone before the next run could see it again; due times vary by a tenth.
    assert spec.clears is not Clears.GONE or spec.gone_s > 1.1 * spec.every_s or n == m == 1


def test_every_row_belongs_to_a_check() -> None:
    assert {row.check for row in ROWS.values()} - {spec.name for spec in ALL} == OTHERS


@pytest.mark.parametrize(
    ("check", "codes"),
    [
        ("efa.errors", {code for code, _ in check_efa.CODES.values()}),
        ("rdma.errors", {rule.code or rule.counter for rule in check_rdma.RULES}),
        ("neuron.errors", set(check_neuron.CODES.values())),
        ("host.units", set(check_host_services.UNITS.values())),
        ("host.dstate", set(check_host_processes.DRIVERS)),
    ],
)
def test_a_checks_own_table_has_a_row_for_each_code(check: str, codes: set[str]) -> None:
    assert codes <= {row.code for row in rows_of(check)}


def test_a_hung_call_is_told_within_half_a_minute() -> None:
    spec = next(spec for spec in CHECKS if spec.name == "gpu.hung")
    # Two missed deadlines, one interval late, with the runner's jitter.
    assert spec.limits["overdue_s"].value + 1.1 * spec.every_s * spec.seen[0] < 30
