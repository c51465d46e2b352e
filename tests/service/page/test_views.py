"""What the page shows: every text escaped and bounded, whoever wrote it, in explain's words."""

import re
import threading
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from unittest.mock import Mock

import pytest
from markupsafe import escape
from msgspec.structs import replace

from hpctl.engine.explain_view import build_explain_view
from hpctl.engine.journal.events import GateBlocked, SignalSeen
from hpctl.engine.world_reader import WorldReader
from hpctl.service.page import follow
from hpctl.service.page.follow import StatusPagePoller
from hpctl.service.page.node_map import make_node_map_cells
from hpctl.service.page.render import StatusPageRenderer
from hpctl.service.page.training import list_training_job_summaries, scale_time_spans_to_segments
from hpctl.slurm.read import SlurmCommandReader
from hpctl.slurm.run import SlurmCommandRunner
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import JobId, NodeName, RecoveryId, RuleId
from hpctl.vocabulary.model import DeviceVerdict, Finding
from tests.cli import worlds
from tests.service.page import site

pytestmark = pytest.mark.integration

HOSTILE = (
    "</title><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{7*7}}{% raw %}"
    "\u202e\u2066\x1b[31m\n\r\x00" + "A" * 10_000
)
PATHS = ("/", "/jobs", "/history")
MOVED = {"contents", "person", "healing", "legend", "c-worker-group-1", "n-ip-10-1-0-4"}
"""The parts that change where a node in treatment is handed to a person."""


class Elements(HTMLParser):
    """The tags and the attributes of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def shown(made: StatusPagePoller, path: str) -> str:
    renderer = StatusPageRenderer(made)
    return renderer.document(renderer.page(path), path, 1)


@pytest.fixture
def ticks() -> site.MonotonicClock:
    return site.MonotonicClock()


@pytest.fixture
def known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticks: site.MonotonicClock
) -> StatusPagePoller:
    some = (worlds.healed(), worlds.troubled(), worlds.changes())
    site.append(tmp_path, [event for events in some for event in events])
    health = [*worlds.health().values()]
    return site.follower(tmp_path, monkeypatch, worlds.slurm(), health=health, ticks=ticks)


PAUSE_S = 1000.0
"""Longer than a follower ever waits for the processor's time that a look took."""


def test_no_text_of_anybody_becomes_markup_or_moves_the_reader(tmp_path, monkeypatch):
    slurm = worlds.slurm()
    jobs = {n: replace(job, name=HOSTILE, user=HOSTILE) for n, job in slurm.jobs.items()}
    nodes = {n: replace(node, reason=HOSTILE) for n, node in slurm.nodes.items()}
    evil = Finding(
        "kernel.xid",
        DeviceVerdict.FAIL,
        worlds.at(0),
        worlds.at(0),
        HOSTILE,
        "79",
        HOSTILE,
        HOSTILE,
    )
    health = [replace(h, findings=(evil,)) for h in worlds.health().values()]
    opened = worlds.node_opened("n-1", worlds.gen(4), 60, meaning=HOSTILE, findings=(evil,))
    hold = GateBlocked(worlds.at(70), HOSTILE, "budget", HOSTILE, RuleId(HOSTILE), True)
    site.append(tmp_path, [opened, hold])
    made = site.follower(
        tmp_path, monkeypatch, replace(slurm, jobs=jobs, nodes=nodes), health=health,
        leaves=dict.fromkeys(nodes, HOSTILE),
    )  # fmt: skip
    for path in (
        *PATHS,
        "/explain/n-1",
        "/explain/4242",
        "/explain/ip-10-1-0-5",
        f"/explain/{HOSTILE}",
    ):
        text = shown(made, path)
        found = Elements(text)
        assert found.tags.isdisjoint({"img", "iframe", "object", "form", "style"}), path
        assert text.count("<script") == 1  # our own
        assert not {name for name in found.attributes if name.startswith("on") or name == "style"}
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b\x00]", text)
        assert "49" not in re.findall(r"&gt;&#34;&#39;`(\S\S)", text)
    assert "A" * 4001 not in text


def test_a_page_says_what_explain_says(known: StatusPagePoller) -> None:
    for target in ("n-44444444", "j-77777777", "ip-10-1-0-5", "4444"):
        view = build_explain_view(known.world, known.rules, target)
        assert view is not None
        text = shown(known, f"/explain/{target}")
        for line in view.story:
            assert line.text.replace("'", "&#39;") in text
        assert escape(view.headline[-10:]) in text
        assert f"<b>Waiting for:</b> {view.next.what}"[:40] in text
    assert StatusPageRenderer(known).page("/explain/nobody") == {}
    assert StatusPageRenderer(known).page("/elsewhere") == {}
    running = shown(known, "/explain/4242")
    assert "alice" in running


def test_what_needs_a_person_comes_first_then_the_map_then_jobs_and_recoveries(known) -> None:
    text = shown(known, "/")
    order = ["person", "legend", "g-worker-group-1", "jobs", "healing", "held", "capacity"]
    places = [text.index(f' id="{name}"') for name in order]
    assert places == sorted(places)
    task = text[text.index('<li id="do-n-66666666"') :].partition("</li>")[0]
    assert '<a href="/explain/n-66666666">ip-10-1-0-6: GSP RPC timeout</a>' in task
    assert "<code>hpctl undrain ip-10-1-0-6</code>" in task
    assert "<code>hpctl replace ip-10-1-0-6</code>" in task


def test_cards_are_named_by_node_and_fault_and_have_a_link_that_stays(
    known: StatusPagePoller,
) -> None:
    text = shown(known, "/")
    for rid, name in (
        ("n-44444444", "ip-10-1-0-4: GPU has fallen off the bus"),
        ("j-55555555", "Job 4343 (sweep [7B]), affected by ip-10-1-0-4"),
    ):
        card = text[text.index(f'<article id="card-{rid}"') :].partition("</article>")[0]
        assert f'<a href="/explain/{rid}">{name}</a></h3>' in card
        assert f"{name} &middot;" in shown(known, f"/explain/{rid}")
    assert f'<h2 id="explain-h">{name}' in shown(known, "/explain/4343")


def test_a_job_s_card_tells_when_it_runs_again_and_what_it_lost(known: StatusPagePoller) -> None:
    card = (
        shown(known, "/").partition('<article id="card-j-77777777"')[2].partition("</article>")[0]
    )
    assert "2 nodes (ip-10-1-0-[2-3])" in card
    assert "<b>Runs again:</b> at most " in card
    assert "(by the deadlines of the policy)" in card
    assert "18 s lost in 1 interruption; 200 steps redone" in card


def test_a_timeline_counts_from_the_fault(known: StatusPagePoller) -> None:
    text = shown(known, "/explain/n-11111111")
    assert "T+0 s is the fault, " in text
    assert "<b>T+0.15 s</b>" in text
    assert "<b>T+54 s</b>" in text


def test_what_is_read_without_a_daemon_says_so_and_when(known: StatusPagePoller) -> None:
    text = shown(known, "/")
    assert "read by the page itself, not by a daemon: " in text
    assert 'as of <time id="asof" datetime="2026-11-21T12:01:00+00:00">2026-11-21 12:01 UTC' in text


def test_a_job_with_a_time_limit_is_shown_while_it_runs(tmp_path, monkeypatch) -> None:
    slurm = worlds.slurm()
    ends = worlds.at(3600)
    jobs = {
        number: replace(job, start=worlds.SUBMIT, end=ends) for number, job in slurm.jobs.items()
    }
    over = replace(jobs[JobId(4444)], state="COMPLETED", end=worlds.at(10))
    site.append(tmp_path, worlds.changes())
    made = site.follower(tmp_path, monkeypatch, replace(slurm, jobs=jobs | {over.id: over}))
    assert [training.id for training in list_training_job_summaries(made.world)] == [JobId(4242)]


def test_the_map_tells_what_each_node_is(known: StatusPagePoller) -> None:
    persons = {"ip-10-1-0-6"}
    kinds = {cell.name: cell.kind for cell in make_node_map_cells(known.world, {}, persons)}
    assert kinds == {
        "ip-10-1-0-1": "busy", "ip-10-1-0-2": "idle", "ip-10-1-0-3": "busy",
        "ip-10-1-0-4": "healing", "ip-10-1-0-5": "held", "ip-10-1-0-6": "person",
        "ip-10-1-0-7": "closed", "ip-10-1-0-10": "unknown",
    }  # fmt: skip
    names = [NodeName(f"ip-10-1-0-{n}") for n in (1, 2, 3)]
    leaves = dict(zip(names, ("leaf-10", "leaf-2", "leaf-2"), strict=True))
    placed = [(c.leaf, c.name) for c in make_node_map_cells(known.world, leaves) if c.leaf]
    assert placed == [("leaf-2", names[1]), ("leaf-2", names[2]), ("leaf-10", names[0])]


def test_the_topology_is_the_daemons_where_it_reads_one(tmp_path, monkeypatch, ticks) -> None:
    node = NodeName("ip-10-1-0-1")
    asked: list[str] = []

    def leaves(_: object) -> dict[NodeName, str]:
        asked.append("topology")
        return {node: "of Slurm"}

    monkeypatch.setattr(site.Reads, "leaves", leaves)
    made = site.follower(tmp_path, monkeypatch, worlds.slurm(), ticks=ticks)
    assert (made.leaves, asked) == ({node: "of Slurm"}, ["topology"])
    served = worlds.world(number=1, leaves={node: "of the daemon"})
    monkeypatch.setattr(WorldReader, "read", lambda *_, **__: served)
    ticks.seconds += max(PAUSE_S, 2 * follow.LEAVES_S)
    assert made.look(10.0)
    assert made.leaves == served.leaves
    assert asked == ["topology"], "slurmctld is not asked for what the daemon knows"


def test_a_job_s_losses_are_its_own_and_fit_its_time(known: StatusPagePoller) -> None:
    found = {t.id: t for t in list_training_job_summaries(known.world)}
    train = found[JobId(4242)]
    assert train.lost.seconds == pytest.approx(1.6 - 0.22)
    assert train.since == worlds.SUBMIT
    assert train.ratio == pytest.approx(1 - train.lost.seconds / (3600 + 60), abs=1e-6)
    assert found[JobId(4545)].lost.redone == 200
    for each in found.values():
        assert all(x >= 0 and x + width <= 1000 for x, width, _, _ in each.strip)
    begin = worlds.T0
    assert scale_time_spans_to_segments(
        [(begin, begin, "a", ""), (begin, begin + timedelta(hours=1), "b", "")]
    )


def test_only_what_changed_has_another_key(known: StatusPagePoller, tmp_path: Path, ticks) -> None:
    renderer = StatusPageRenderer(known)
    before = renderer.page("/")
    site.append(
        tmp_path, [SignalSeen(worlds.at(80), RecoveryId("n-44444444"), "needs_human", "no")]
    )
    ticks.seconds += PAUSE_S
    assert known.look(5.0)
    after = renderer.page("/")
    changed = {name for name in after if after[name].key != before[name].key}
    assert changed == MOVED


def test_a_journal_that_cannot_be_read_is_shown_as_old(
    known: StatusPagePoller, tmp_path: Path, ticks: site.MonotonicClock
) -> None:
    (tmp_path / "journal.db").rename(tmp_path / "away.db")
    ticks.seconds += PAUSE_S
    assert known.look(5.0)
    assert "This is out of date: hpctl has no journal" in shown(known, "/")
    (tmp_path / "away.db").rename(tmp_path / "journal.db")
    ticks.seconds += PAUSE_S
    assert known.look(5.0)
    assert "out of date" not in shown(known, "/")
    assert "n-44444444" in known.world.state.nodes


@pytest.mark.parametrize(
    "text",
    [
        # topology/tree; source: slurm.schedmd.com/topology.html
        "SwitchName=s0 Level=0 LinkSpeed=1 Nodes=n[0-1]\n"
        "SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n2\n"
        "SwitchName=top Level=1 LinkSpeed=1 Nodes=n[0-2] Switches=s[0-1]\n",
        # topology/block
        "BlockName=s0 BlockIndex=0 Nodes=n[0-1] BlockSize=2\nBlockName=s1 BlockIndex=1 Nodes=n2\n",
    ],
)
def test_a_node_hangs_on_its_leaf_or_block(tmp_path: Path, text: str) -> None:
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
    program.chmod(0o755)
    assert SlurmCommandReader(SlurmCommandRunner(bin_dir=tmp_path)).leaves() == {
        "n0": "s0",
        "n1": "s0",
        "n2": "s1",
    }
    program.write_text("#!/bin/sh\necho No topology information available; exit 1\n")
    assert SlurmCommandReader(SlurmCommandRunner(bin_dir=tmp_path)).leaves() == {}


def test_a_world_that_cannot_be_read_is_called_old_until_it_can(known, monkeypatch, ticks):
    assert known.trouble == ""
    ticks.seconds += PAUSE_S
    monkeypatch.setattr(follow, "OFFLINE_S", (3 * PAUSE_S, 3 * PAUSE_S))
    with monkeypatch.context() as patch:
        patch.setattr(WorldReader, "read", Mock(side_effect=HpctlError("the journal is away")))
        known.look(5.0)
    ticks.seconds += PAUSE_S
    known.look(5.0)
    assert "the journal is away" in known.trouble, "nothing was due, and nothing was read"
    ticks.seconds += 3 * PAUSE_S
    known.look(5.0)
    assert known.trouble == ""


def test_a_reading_that_takes_long_is_reported(known, monkeypatch, ticks):
    held = threading.Event()
    monkeypatch.setattr(WorldReader, "read", lambda *_, **__: held.wait(60))
    ticks.seconds += PAUSE_S
    known.look(0.0)
    assert known.trouble == ""
    ticks.seconds += PAUSE_S
    known.look(0.0)
    held.set()
    assert "has not answered" in known.trouble
