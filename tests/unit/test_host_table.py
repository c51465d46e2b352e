"""The table of the host checks and the head node's rows belong together."""

from __future__ import annotations

import inspect
import re
from importlib import import_module

import pytest

from hpctl.agent.check import Spec
from hpctl.agent.checks.table_host import HOST
from hpctl.core.catalogue_host import HOST_ROWS

NAMES = [spec.name for spec in HOST]
MAY_TOUCH_A_NODE = {
    "host-devices-nvme",
    *("host-readonly-readonly", "host-edac-ue", "host-nvme-dead", "host-nvme-smart-failing"),
    *("host-dstate-nvidia", "host-dstate-efa", "host-dstate-neuron", "host-units-fabricmanager"),
    *("host-units-slurmd", "host-units-munge", "host-memory-short", "host-clock-skewed"),
    *("host-disk-full", "host-disk-inodes", "host-disk-leftovers", "host-spot-interruption"),
}
STOPS_JOBS = {"host-readonly-readonly"} | {r for r in MAY_TOUCH_A_NODE if "dstate" in r}


def codes(spec: Spec) -> set[str]:
    """The codes in a judge's source, with the units' own and the drivers'."""
    module = import_module(f"hpctl.agent.checks.{spec.module}")
    text = inspect.getsource(module)
    found = set(re.findall(r'Observation\(\s*"([\w-]+)"', text))
    if spec.name == "host.units":
        found |= {*module.UNITS.values(), "stopped"}
    if spec.name == "host.allowance":
        found |= {"network", "conntrack", "ebs"}
    if spec.name == "host.dstate":
        found |= set(module.DRIVERS)
    if spec.name == "host.zombies":
        found |= {"tasks", "files"}
    return found


@pytest.mark.parametrize("spec", HOST, ids=NAMES)
def test_every_code_has_a_row_and_every_row_a_code(spec):
    stem = spec.name.replace(".", "-")
    others = [n.replace(".", "-") for n in NAMES if n != spec.name and n.startswith(spec.name)]
    rows = {
        row.rule
        for row in HOST_ROWS
        if row.rule.startswith(f"{stem}-") and not any(row.rule.startswith(o) for o in others)
    }
    assert rows == {f"{stem}-{code}" for code in codes(spec)}


def test_no_row_without_a_check():
    stems = tuple(f"{name.replace('.', '-')}-" for name in NAMES)
    assert [row.rule for row in HOST_ROWS if not row.rule.startswith(stems)] == []


def test_only_what_is_certain_touches_a_node():
    assert {row.rule for row in HOST_ROWS if row.treatment != "I"} == MAY_TOUCH_A_NODE
    assert {row.rule for row in HOST_ROWS if row.treatment == "B"} == STOPS_JOBS
    told = [row for row in HOST_ROWS if row.treatment == "I" and not row.watch]
    # What a job does by itself is told, and is no reason to suspect the node.
    assert all(row.rule.startswith("host-allowance-") for row in told)


@pytest.mark.parametrize("spec", HOST, ids=NAMES)
def test_a_finding_outlives_the_pause_between_two_looks(spec):
    # Due times vary by a tenth.
    assert spec.gone_s > 2 * spec.every_s or spec.clears.value != "gone"
    assert spec.seen[0] <= spec.seen[1]
