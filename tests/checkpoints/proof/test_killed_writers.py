"""The proof: what hpctl calls whole after a kill loads in the library, and is what was saved."""

import json
import os
import re
from pathlib import Path

import pytest
from msgspec.structs import asdict

from tests.checkpoints.proof.killing import Count, Kills
from tests.checkpoints.proof.table import PROPERTY, lines
from tests.checkpoints.proof.template import Template
from tests.checkpoints.proof.torch_here import need
from tests.checkpoints.proof.writers import ENGINES, WAYS, missing

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[3]
SEED = int(os.environ.get("HPCTL_TEST_SEED", "20260101"))


@pytest.mark.parametrize("name", WAYS)
def test_what_hpctl_calls_whole_loads(name, tmp_path, record_property):
    for library in missing(name):
        if library in ENGINES:
            pytest.skip(f"NOT TESTED: {library} is not installed")
        need(library)
    with Template(name, tmp_path) as template:
        count = Kills(template, tmp_path, SEED).run(WAYS[name].kills)
    record_property(PROPERTY, json.dumps(asdict(count)))
    assert count.false_whole == []
    # hpctl may be more careful than the library, within reason.
    assert WAYS[name].stale or len(count.false_passed) <= 1 + count.passed // 50, count.false_passed
    # A writer in place may be killed each time within a save: then nothing proves itself.
    assert count.whole or count.offered or WAYS[name].stale, "not one checkpoint was called whole"
    assert count.within >= WAYS[name].kills // 3, "few writers were killed within a save"


def test_the_check_of_a_change_finds_the_rate():
    """.ci/run takes the line of the table by its pattern."""
    script = (ROOT / ".ci/run").read_text()
    good, bad = re.findall(r"""grep (?:-q )?"(\^false 'whole'[^"]*)\"""", script)
    for found, rates in (([good], Count("x", 1, whole=3)), ([], Count("x", 1)),
                         ([bad], Count("x", 1, whole=3, false_whole=["step-1"]))):  # fmt: skip
        printed = "\n".join(lines([rates]))
        assert [p for p in (good, bad) if re.search(p, printed, re.MULTILINE)] == found
