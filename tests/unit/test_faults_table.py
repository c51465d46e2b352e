"""The fault table: each check sound, each code with its row, and what may touch a node."""

from __future__ import annotations

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
from hpctl.core.faults.host import HOST
from hpctl.core.faults.row import CheckSpec
from hpctl.core.faults.table import CHECKS, GPU_CHECKS, KERNEL_CHECKS, ROWS, rows_of
from hpctl.core.model import BootId, Clears, Finding, InstanceId, NodeName, Report, Verdict
from hpctl.protocol import reports as wire

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ALL = (*CHECKS, *KERNEL_CHECKS, AGENT_CHECKS)
FINDS_NOTHING = {"gpu.gauges"}
OTHERS = {"hma", "agent.plugins", "node", "slurm", "cloud", "agent", "peer", "history", "check"}
"""Who finds what no check of the agent's table does."""
ACTS = {
    "gpu": "recovery lost hung xid count driver fabric nvlink ecc remap retired pcie",
    "efa": "devices keepalive commands",
    "neuron": "devices errors",
    "host": "devices readonly edac nvme nvme.smart dstate units memory clock disk spot",
    "kernel": "xid sxid pcie fs nvme block memory oom crash lockup efa mlx5 lustre nvidia neuron",
}
"""The checks of which at least one code touches a node."""


def checks(**names: str) -> set[str]:
    return {f"{family}.{name}" for family, those in names.items() for name in those.split()}


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


def test_only_what_is_certain_touches_a_node() -> None:
    agents = {spec.name for spec in (*CHECKS, *KERNEL_CHECKS)}
    assert {row.check for row in ROWS.values() if row.acts} & agents == checks(**ACTS)
    assert {row.code for row in HOST if row.treatment == "B"} == {
        *("readonly", "nvidia", "efa", "neuron")
    }
    told = {row.check for row in HOST if row.treatment == "I"}
    # What a job does by itself is told, and is no reason to suspect the node.
    assert told == {"host.allowance"}


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


@pytest.mark.parametrize("name", ["gpu.hung", "gpu.recovery", "gpu.lost", "gpu.count", "gpu.ecc"])
def test_what_is_certain_is_never_shed(name: str) -> None:
    assert next(spec for spec in CHECKS if spec.name == name).shed == 0


def test_a_hung_call_is_told_within_half_a_minute() -> None:
    spec = next(spec for spec in GPU_CHECKS if spec.name == "gpu.hung")
    # Two missed deadlines, one interval late, with the runner's jitter.
    assert spec.limits["overdue_s"].value + 1.1 * spec.every_s * spec.seen[0] < 30


@pytest.mark.parametrize(
    "name", ["gpu.fabric", "gpu.nvlink", "gpu.nvlink.errors", "gpu.processes", "gpu.retired"]
)
def test_what_the_child_reads_seldom_is_not_counted_twice(name: str) -> None:
    # Links, fabric, processes and pages are read each 30 s, by a sweep that comes each 5 s.
    assert next(spec for spec in GPU_CHECKS if spec.name == name).every_s * 0.9 > 30 + 5


@pytest.mark.parametrize("spec", CHECKS, ids=lambda spec: spec.name)
def test_no_check_of_the_nic_is_more_often_than_the_nic_likes(spec: CheckSpec) -> None:
    assert spec.every_s >= 10 or not spec.name.startswith("efa.")
