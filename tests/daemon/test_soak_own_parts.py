"""A short soak of the parts of hpctl; `make soak FAULTS=all` is the long one."""

import os

import pytest

from tests.soak.jobs import SHAPES
from tests.soak.run import Plan, soak
from tests.soak.surroundings import OWN_FAULTS

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.timeout(600),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system"),
]
NAMES = ("intake-killed", "daemon-in-cordoned", "second-daemon", "disk-full", "few-descriptors")


def test_broken_parts_forget_no_recovery_and_repeat_no_effect(capsys) -> None:
    output: list[str] = []
    plan = Plan(
        5.0,  # a limit for a loaded machine: the soak ends after `most` faults
        seed=3,
        steps=80,
        pause_s=(0.5, 1.5),
        named_s=120,
        shapes=[shape for shape in SHAPES if shape.name == "requeued"],
        own=[fault for fault in OWN_FAULTS if fault.name in NAMES],
        most=6,
        away_s=12.0,
    )
    account = soak(plan, output.append)
    with capsys.disabled():
        print("", *account.lines(), sep="\n")
    assert account.broken == []
    assert not account.twice
    assert not account.other_weights
    assert not account.status.misses
    assert sum(account.struck[name] for name in NAMES) == plan.most, output
    assert account.checks > plan.most
