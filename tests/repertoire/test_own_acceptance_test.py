"""A site's own acceptance test: written as docs/acceptance.md says, it decides on a node."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.daemon.chaos import Chaos, cluster
from tests.live import ROOT, until
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly]
PAGE: Final = Path(ROOT) / "docs" / "acceptance.md"
PROGRAM: Final = """#!/bin/sh
echo '{"figures": {"read_gbs": 6.9}}'
[ ! -e {base}/broken ] || echo "HEALTH_CHECK_RESULT:$(hostname):Failed:reboot:the disk is slow"
"""


def read_example() -> dict[str, Any]:
    """Return the page's row of a test."""
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (example,) = [block for block in blocks if block.startswith("tests:")]
    (row,) = yaml.safe_load(example)["tests"]
    return dict(row)


@pytest.fixture(scope="module")
def live() -> Iterator[Chaos]:
    ladder = {"catalogue": {"xid-79": {"ladder": ["reboot", "ask_human"]}}}
    with cluster(ladder, files={"disk-test": PROGRAM}, nodes=2) as live:
        base = live.sandbox.state_dir.parent
        site = base / "tests.d"
        site.mkdir(mode=0o755)
        row = read_example()
        row["command"] = [str(base / "disk-test")]
        (site / "disk.yaml").write_text(yaml.safe_dump({"tests": [row]}))
        first = yaml.safe_load(live.first_config)["acceptance"]["command"]
        # In place of /etc/hpctl/tests.d, which is the machine's.
        command = first.replace("env ", f"env HPCTL_TESTS_D={site} ", 1)
        live.reconfigure(acceptance={"reboot": "quick", "command": command})
        yield live


def check_listed(live: Chaos) -> None:
    """Have `hpctl acceptance check` list the test of the page."""
    shown = json.loads(live.hpctl("acceptance", "check", "--json", check=False))
    (check,) = shown["checks"]
    assert check["verdict"] == "ok", check
    assert f"{read_example()['name']}: runs" in check["what"]


def list_results(live: Chaos, node: str) -> dict[str, Any]:
    """Return what the newest test of a node has found, by the name of each check."""
    return {one.check: one for one in live.last(node).tests}


@story(
    job="Node that hpctl has rebooted, with a test of the site in /etc/hpctl/tests.d",
    act="the test passes, and prints a figure",
    slurm="The node serves again.",
    explain="`hpctl acceptance check` lists the test, `hpctl acceptance show` its figure.",
)
def test_a_sites_test_passes_a_node(live: Chaos) -> None:
    check_listed(live)
    (victim,) = live.victims(1)
    live.xid(victim)
    live.returned(victim, timeout_s=120)
    found = list_results(live, victim)["acceptance.site.disk"]
    assert (found.verdict, json.loads(found.evidence)) == ("ok", {"read_gbs": 6.9})
    shown = live.hpctl("acceptance", "show", victim, "--json")
    assert '"read_gbs": 6.9' in shown
    until(lambda: live.node(victim).in_service, 60, "the node serves")


@story(
    job="Node that hpctl has rebooted, with a test of the site in /etc/hpctl/tests.d",
    act="the test prints `HEALTH_CHECK_RESULT:...:Failed:reboot:...` each time",
    slurm="The node is rebooted once more, fails again, and stays drained for a person.",
    explain="What the test said.",
)
def test_a_sites_test_fails_a_node(live: Chaos) -> None:
    broken = live.sandbox.state_dir.parent / "broken"
    broken.touch()
    (victim,) = live.victims(1)
    live.xid(victim)
    until(lambda: live.phase(victim) == "escalated", 180, "a person is called")
    assert "the disk is slow" in live.explained(victim)
    assert live.node(victim).drained
    broken.unlink()
    live.hpctl("undrain", victim)
    until(lambda: live.node(victim).in_service, 60, "it is given back")
