"""`hpctl journal audit`: who asked what, what changed, and whether the trail is whole."""

import json

import pytest
from sqlalchemy import text

from hpctl.engine.journal.database import make_database_engine
from hpctl.engine.journal.events import ConfigurationTaken, RequestTaken
from tests.cli import worlds
from tests.fakes.command_line import Head

pytestmark = pytest.mark.integration

ASKED = RequestTaken(
    worlds.at(5), 3, "replace", "n1", "carol", "recovery n-1 opened", True, "MUNGE uid 1001"
)
REFUSED = RequestTaken(worlds.at(6), 4, "return", "n2", "eve", "not drained by hpctl", False)


@pytest.fixture
def audited(head: Head) -> Head:
    observe = ConfigurationTaken(worlds.at(0), {"mode": '"assist"'}, "root")
    own = ConfigurationTaken(worlds.at(1), {"mode": '"own"', "budgets.per_hour": "20"}, "root")
    head.write([observe, own], [ASKED], [REFUSED])
    return head


def test_requests_and_configurations_are_listed(audited: Head) -> None:
    lines = audited.run("journal", "audit", width=200).stdout.splitlines()
    assert lines[0].endswith('root (owns the file)  configuration: mode: default -> "assist"')
    assert 'budgets.per_hour: default -> 20; mode: "assist" -> "own"' in lines[1]
    assert lines[2].endswith("carol (MUNGE uid 1001)  replace n1: recovery n-1 opened")
    assert lines[3].endswith("eve  return n2 (refused): not drained by hpctl")


def test_since_leaves_out_what_is_older(audited: Head) -> None:
    since = worlds.at(6).isoformat()
    shown = json.loads(audited.run("journal", "audit", "--since", since, "--json").stdout)
    assert [e["by"] for e in shown["entries"]] == ["eve"]


def test_a_whole_trail_verifies_and_knows_its_digests(audited: Head) -> None:
    shown = json.loads(audited.run("journal", "audit", "--json").stdout)
    for entry in shown["entries"]:
        assert audited.run("journal", "audit", "verify", "--expect", entry["digest"]).exit_code == 0
    missing = audited.run("journal", "audit", "verify", "--expect", "0" * 64)
    assert missing.exit_code == 1
    assert "rebuilt or truncated" in missing.stdout


def test_a_changed_row_is_named(audited: Head) -> None:
    engine = make_database_engine(f"sqlite:///{audited.dir / 'journal.db'}")
    with engine.begin() as c:
        c.execute(text("UPDATE hpctl_audit SET payload = replace(payload, 'carol', 'alice')"))
    engine.dispose()
    result = audited.run("journal", "audit", "verify")
    assert result.exit_code == 1
    assert result.stdout.startswith("Row 3 does not follow")
