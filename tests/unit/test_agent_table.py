"""The table of checks: what every row must be for its findings to arrive and to mean something."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from dataclasses import replace
from datetime import datetime

import pytest

from hpctl.agent.check import Spec
from hpctl.agent.checks.table import CHECKS
from hpctl.agent.runner import AGENT_CHECKS, load
from hpctl.core.catalogue import SHIPPED
from hpctl.core.compat import UTC
from hpctl.core.model import BootId, Clears, Finding, InstanceId, NodeName, Report, Verdict
from hpctl.protocol import reports as wire

NOW = datetime(2026, 3, 1, tzinfo=UTC)
ALL = (*CHECKS, AGENT_CHECKS)


def test_every_name_is_there_once() -> None:
    assert [n for n, count in Counter(s.name for s in ALL).items() if count > 1] == []


@pytest.mark.parametrize("spec", ALL, ids=lambda spec: spec.name)
def test_the_head_node_takes_its_findings(spec: Spec) -> None:
    finding = Finding(spec.name, Verdict.FAIL, NOW, NOW, clears=spec.clears)
    report = Report(NodeName("n"), InstanceId("i"), BootId("b"), 1, NOW, NOW, (finding,))
    assert wire.decode(wire.encode(report)).findings == (finding,)


@pytest.mark.parametrize("spec", CHECKS, ids=lambda spec: spec.name)
def test_its_module_holds_what_the_runner_calls(spec: Spec) -> None:
    check = load(spec)
    assert len(inspect.signature(check.gather).parameters) == 1
    assert len(inspect.signature(check.judge).parameters) == 3
    assert set(check.limits) == set(spec.limits)
    assert load(spec, dict.fromkeys(list(spec.limits)[:1], 7.0)).limits != {} or not spec.limits


@pytest.mark.parametrize("spec", CHECKS, ids=lambda spec: spec.name)
def test_its_numbers_make_sense(spec: Spec) -> None:
    n, m = spec.seen
    assert 1 <= n <= m
    assert spec.every_s >= 1
    assert spec.shed >= 0
    assert spec.what
    assert spec.source
    assert all(limit.unit and limit.why for limit in spec.limits.values())
    # Else it would be gone before the next run could see it again.
    assert spec.clears is not Clears.GONE or spec.gone_s >= spec.every_s or n == m == 1


def test_every_rule_about_a_check_speaks_of_one_that_exists() -> None:
    stems = tuple(spec.name.replace(".", "-") for spec in CHECKS)
    families = r"gpu|efa|rdma|neuron|host"
    lost = [r for r in SHIPPED if re.match(rf"({families})-", r) and not r.startswith(stems)]
    assert lost == []


def test_a_changed_row_would_be_noticed() -> None:
    bad = replace(CHECKS[0], name="gpu.not-allowed")
    with pytest.raises(wire.MalformedReportError):
        test_the_head_node_takes_its_findings(bad)
