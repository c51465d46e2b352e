"""The daemon's world as readers get it: whole, current, once; and who may not disturb that."""

import os
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest.mock import Mock

import msgspec
import pytest
from click import Command, Context, Option
from msgspec.structs import replace

from hpctl import __version__
from hpctl.engine import completion, world_client, world_server, world_wire
from hpctl.engine.config import ClusterSection, Config
from hpctl.engine.instance_resolver import NEVER
from hpctl.engine.journal.events import ConfigurationTaken, Event, RequestTaken, SignalSeen
from hpctl.engine.journal.rows import StandbyInfo
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.loop import RecoveryCycleResult
from hpctl.engine.view import PlanningView
from hpctl.engine.world import World
from hpctl.engine.world_client import WorldClient, WorldUnavailableError
from hpctl.engine.world_reader import WorldReader
from hpctl.engine.world_server import WorldServer
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure
from tests.cli import worlds
from tests.waiting import until

pytestmark = pytest.mark.integration

STANDBY = StandbyInfo("head-2", "head-2:8470", 8, "0.1", 4, worlds.NOW, 0)
HOLDS = tuple(replay_events(worlds.troubled()).holds.values())


class Leads:
    """Of Leadership, what the server asks."""

    lease = worlds.DAEMON
    leads = True

    def standbys(self) -> tuple[StandbyInfo, ...]:
        return (STANDBY,)


def orders() -> list[Event]:
    """What operators ordered, and by what the daemon acts."""
    said = (("approve", "ip-10-1-0-5"), ("return", "ip-10-1-0-2"), ("pause", ""))
    taken = [
        RequestTaken(worlds.at(80 + n), n, verb, target, "carol", "", True)
        for n, (verb, target) in enumerate(said)
    ]
    return [*taken, ConfigurationTaken(worlds.at(85), {"mode": '"own"'}, "root")]


def made(state: EngineState | None = None) -> World:
    """A world as the tests of commands have it; with `state` that of a loop."""
    some = (worlds.healed(), worlds.troubled(), worlds.changes(), orders())
    world = worlds.world(*some)
    return world if state is None else replace(world, state=state)


def cycle(world: World, **changes) -> RecoveryCycleResult:
    """The cycle that saw a world. Its assessments are those of nodes that are not well."""
    unwell = {n: a for n, a in world.assessments.items() if a.condition != "healthy" or a.findings}
    view = replace(world.view(), assessments=unwell)
    values = {"at": world.now, "view": view, "policy": world.policy, "holds": HOLDS, **changes}
    return RecoveryCycleResult(**values)


class Memory:
    """Of JournaledState, what the server asks: how many events the loop has in memory."""

    def __init__(self) -> None:
        self.state = EngineState()


class Bed:
    """A server over a directory, and a client of it."""

    def __init__(self, place: Path) -> None:
        (place / "journal.db").touch(0o600)
        self.config = Config(state_dir=place, cluster=ClusterSection("none", "llm-prod"))
        self.leads, self.memory = Leads(), Memory()
        self.server = WorldServer(self.config, self.leads, self.memory)
        self.server.start()
        self.client = WorldClient(self.config)

    def read(self, **wants: bool) -> World:
        asked = {"cloud": True, "history": True, **wants}
        return self.client.read(worlds.NOW, **asked)

    @contextmanager
    def line(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 10, 0))
            one.connect(str(self.config.state_dir / "world.sock"))
            one.settimeout(60)
            yield one


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    found = Bed(tmp_path)
    yield found
    found.server.stop()
    assert not (tmp_path / "world.sock").exists()


def test_a_reader_gets_the_world_that_the_loop_saw(bed: Bed) -> None:
    world = made()
    flaw = ItemProcessingFailure("ip-10-1-0-3", "plan", "ValueError: no", "0" * 12)
    bed.server.offer(cycle(world, flaws=(flaw,)))
    found = bed.read()
    assert found.state == world.state
    assert (found.slurm, found.joined.instances) == (world.slurm, world.joined.instances)
    assert found.cloud is not None
    assert found.cloud.instances.keys() == world.cloud.instances.keys()
    assert (found.health, found.assessments) == (world.health, world.assessments)
    assert (found.holds, found.flaws, found.policy) == (HOLDS, (flaw,), world.policy)
    assert (found.daemon, found.standbys) == (worlds.DAEMON, (STANDBY,))
    assert (found.cluster, found.computed) == ("llm-prod", "")


def test_unreadable_part_is_none_with_a_reason(bed: Bed) -> None:
    bed.server.offer(cycle(made(), slurm_trouble="slurmctld is away", cloud_trouble="throttled"))
    found = bed.read()
    assert (found.slurm, found.slurm_error) == (None, "slurmctld is away")
    assert (found.cloud, found.cloud_error) == (None, "throttled")
    assert bed.read(cloud=False).cloud_error == "throttled"
    unread = replace(made(), cloud=CloudProviderView(NEVER, present=True))
    bed.server.offer(cycle(unread))
    found = bed.read()
    assert (found.cloud, found.cloud_error) == (None, "the cloud has not answered yet")


def test_reservations_and_topology_are_sent_where_the_daemon_reads_them(bed: Bed) -> None:
    unread = cycle(made())
    reservations = {"maint": (NodeName("ip-10-1-0-1"),)}
    leaves = {NodeName("ip-10-1-0-1"): "s0"}
    known = replace(unread.view, placed=True, reservations=reservations, leaves=leaves)
    bed.server.offer(unread)
    assert (bed.read(placement=True).reservations, bed.read(placement=True).leaves) == (None, None)
    bed.server.offer(replace(unread, view=known))
    found = bed.read(placement=True)
    assert (found.reservations, found.leaves) == (reservations, leaves)
    assert bed.read().leaves is None, "only who asks for them gets them"
    bed.server.offer(replace(unread, view=replace(known, leaves={})))
    assert bed.read(placement=True).leaves == {}, "a cluster without a topology has none"


def test_reader_can_request_single_parts(bed: Bed, monkeypatch) -> None:
    world = made()
    bed.server.offer(cycle(world))
    sent: list[str] = []
    encode = world_server.encode_frames

    def noted(part, *rest):
        sent.append(str(part))
        return encode(part, *rest)

    monkeypatch.setattr(world_server, "encode_frames", noted)
    assert bed.client.read_scheduler_view() == world.slurm
    assert sent == ["slurm"]
    assert set(bed.client.list_reporting_nodes()) == set(world.health)
    assert bed.client.read_journal_state(history=True) == world.state
    assert sent == ["slurm", "health", "state", "history"]
    bed.server.offer(cycle(world, slurm_trouble="slurmctld is away"))
    assert bed.client.read_scheduler_view() is None


def test_completion_takes_names_from_the_daemon_and_opens_no_journal(
    bed: Bed, tmp_path: Path, monkeypatch
) -> None:
    world = made()
    bed.server.offer(cycle(world))
    config = tmp_path / "hpctl.yaml"
    config.write_text(f"state_dir: {tmp_path}\n")
    opened = Mock(side_effect=ServiceUnavailable("no journal", ""))
    monkeypatch.setattr("hpctl.engine.adapters.open_journal_reader", opened)
    context = Context(Command("explain"))
    context.params["config"] = str(config)

    def complete(pick: completion.Complete, start: str) -> list[str]:
        return pick(context, Option(["--name"]), start)

    assert complete(completion.complete_node, "ip-") == sorted(world.health)
    assert complete(completion.complete_hold, "ip-10-1-0-5") == ["ip-10-1-0-5"]
    assert complete(completion.complete_open, "n-4") == ["n-44444444"]
    assert "4242" in complete(completion.complete_any, "4")
    assert not opened.called
    bed.leads.leads = False
    assert complete(completion.complete_node, "ip-") == []
    assert opened.called, "without a daemon the journal is read"


def test_history_is_sent_on_request(bed: Bed) -> None:
    world = made()
    late = replace(world, now=worlds.at(2 * 86400))
    bed.server.offer(cycle(late))
    assert bed.read().state == world.state
    short = bed.read(history=False).state
    assert (short.nodes, short.holds) == (world.state.nodes, world.state.holds)
    ended = {rid for rid, rec in world.state.jobs.items() if rec.ended}
    assert ended
    assert short.jobs.keys() == world.state.jobs.keys() - ended
    assert not short.reports


def test_a_world_is_encoded_when_it_is_asked_for_and_once(bed: Bed, monkeypatch) -> None:
    taken = []
    monkeypatch.setattr(
        world_server,
        "encode_frames",
        lambda part, *rest: taken.append(part) or world_wire.encode_frames(part, *rest),
    )
    bed.server.offer(cycle(made()))
    bed.server.offer(cycle(made()))
    assert taken == []
    first = bed.read(cloud=False)
    WorldClient(bed.config).read(worlds.NOW, cloud=False, history=True)
    assert sorted(taken) == ["health", "history", "slurm", "state"]
    again = bed.read(cloud=False)
    assert again.slurm is first.slurm
    bed.server.offer(cycle(made()))
    assert bed.read(cloud=False).number == first.number + 1


def test_only_what_changed_is_encoded_and_sent_again(bed: Bed, monkeypatch) -> None:
    taken: list[str] = []
    monkeypatch.setattr(
        world_server,
        "encode_frames",
        lambda part, *rest: taken.append(part) or world_wire.encode_frames(part, *rest),
    )

    def encoded(state: EngineState, **changes) -> set[str]:
        taken.clear()
        bed.server.offer(cycle(replace(world, state=state, **changes)))
        assert bed.read().state == state
        return {*taken}

    state = replay_events([*worlds.healed(), *worlds.troubled(), *worlds.changes()])
    world = made(state)
    assert encoded(state) == {"state", "history", "health", "slurm", "cloud"}
    assert encoded(state) == {"health", "slurm"}
    state.fold(SignalSeen(worlds.at(90), "n-44444444", "needs_human", "no"))
    assert encoded(state) == {"state", "health", "slurm"}
    later = worlds.at(2 * 86400)
    assert encoded(state, now=later) == {"state", "history", "health", "slurm"}
    assert encoded(state, now=later, cloud=worlds.cloud()) == {"health", "slurm", "cloud"}
    again = replay_events([*worlds.healed(), *worlds.troubled()])
    assert encoded(again) == {"state", "history", "health", "slurm", "cloud"}
    other = WorldClient(bed.config).read(worlds.NOW, cloud=True, history=True)
    assert other.state == again


def test_offered_world_does_not_change_with_the_next_cycle(bed: Bed) -> None:
    state = replay_events([*worlds.healed(), *worlds.troubled(), *worlds.changes()])
    world = made(state)
    bed.server.offer(cycle(world))
    before = state.nodes["n-44444444"]
    bed.memory.state.events = state.events
    state.fold(SignalSeen(worlds.at(90), "n-44444444", "needs_human", "no"))
    assert bed.read().state.nodes["n-44444444"] == before
    bed.server.offer(cycle(world))
    assert bed.read().state.nodes["n-44444444"].phase == "escalated"


def test_who_saw_an_answer_in_the_journal_finds_it_in_the_world(bed: Bed, monkeypatch) -> None:
    """A cycle that has written down what it did is waited for."""
    state = replay_events(worlds.troubled())
    bed.server.offer(cycle(made(state)))
    bed.memory.state.events = state.events + 1
    with bed.line() as line:
        line.sendall(world_wire.encode_world_request([world_wire.WorldPart.STATE]))
        until(lambda: any(c.ask for c in [*bed.server.clients.values()]), 5)
        state.fold(SignalSeen(worlds.at(90), "n-44444444", "needs_human", "no"))
        bed.server.offer(cycle(made(state)))
        assert line.recv(4, socket.MSG_PEEK)
    assert bed.read().state.nodes["n-44444444"].phase == "escalated"
    monkeypatch.setattr(world_server, "BEHIND_S", 0.1)
    bed.memory.state.events += 1
    with pytest.raises(WorldUnavailableError, match="the cycle under way takes long"):
        bed.read()


def test_no_world_is_taken_from_who_does_not_lead_or_hangs_or_speaks_otherwise(
    bed: Bed, monkeypatch
) -> None:
    with pytest.raises(WorldUnavailableError, match="no cycle has ended yet"):
        bed.read()
    bed.server.offer(cycle(made()))
    assert bed.read().number
    bed.leads.leads = False
    with pytest.raises(WorldUnavailableError, match="does not lead"):
        bed.read()
    bed.leads.leads = True
    with monkeypatch.context() as patch:
        patch.setattr(
            world_server,
            "read_seconds_since_boot",
            lambda: time.clock_gettime(time.CLOCK_BOOTTIME) + 31,
        )
        with pytest.raises(WorldUnavailableError, match="last cycle ended 31 s ago"):
            bed.read()
    with monkeypatch.context() as patch:
        patch.setattr(world_server, "__version__", "99.0")
        with pytest.raises(WorldUnavailableError, match=f"hpctl 99.0, this is {__version__}"):
            bed.read()
    with monkeypatch.context() as patch:
        patch.setattr(world_wire, "PROTOCOL", world_wire.PROTOCOL + 1)
        with pytest.raises(WorldUnavailableError):
            bed.read()
    assert bed.read().number


def test_a_reader_without_a_daemon_says_so(tmp_path: Path) -> None:
    with pytest.raises(WorldUnavailableError, match="is not there"):
        WorldClient(Config(state_dir=tmp_path)).read(worlds.NOW, cloud=False, history=False)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "world.sock"))
    with pytest.raises(WorldUnavailableError, match="nothing answers"):
        WorldClient(Config(state_dir=tmp_path)).read(worlds.NOW, cloud=False, history=False)


@pytest.mark.parametrize(
    ("journal", "world"), [(0o600, 0o600), (0o640, 0o660), (0o644, 0o666), (0o664, 0o666)]
)
def test_readers_of_the_journal_may_read_the_world(
    bed: Bed, tmp_path: Path, journal: int, world: int
) -> None:
    bed.server.offer(cycle(made()))
    (tmp_path / "journal.db").chmod(journal)
    with bed.line() as line:
        said = b""
        with suppress(ConnectionError):
            line.sendall(world_wire.encode_world_request([world_wire.WorldPart.STATE]))
            said = line.recv(1)
    assert bool(said) == (journal == 0o600), "it was let in by the access of before"
    found = stat.S_IMODE((tmp_path / "world.sock").stat().st_mode)
    assert found == world
    # One that comes while the others are refused may be refused with them.
    until(lambda: not isinstance(attempted(bed), WorldUnavailableError), 5)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another group")
def test_unusable_group_of_the_socket_locks_no_other_user_out(
    bed: Bed, tmp_path: Path, monkeypatch
) -> None:
    bed.server.offer(cycle(made()))
    os.chown(tmp_path / "journal.db", -1, 65534)
    (tmp_path / "journal.db").chmod(0o640)
    monkeypatch.setattr(world_server.os, "chown", Mock(side_effect=PermissionError("not allowed")))
    until(lambda: not isinstance(attempted(bed), WorldUnavailableError), 5)
    assert stat.S_IMODE((tmp_path / "world.sock").stat().st_mode) == 0o600
    assert not isinstance(attempted(bed), WorldUnavailableError), "it is let in each time"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_a_stranger_is_refused_where_the_journal_is_closed(bed: Bed, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    code = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    done = subprocess.run(
        [os.path.realpath(sys.executable), "-I", "-c", code, str(tmp_path / "world.sock")],
        user=65534, group=65534, extra_groups=[], capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    assert "PermissionError" in done.stderr


def attempted(bed: Bed) -> World | WorldUnavailableError:
    """What a reader gets."""
    try:
        return bed.read()
    except WorldUnavailableError as reason:
        return reason


def answers(bed: Bed) -> float:
    """Seconds until another reader has the world of a new cycle."""
    began = time.monotonic()
    bed.server.offer(cycle(made()))
    offered = time.monotonic()
    assert offered - began < 1.0, "the loop does not wait"
    assert WorldClient(bed.config).read(worlds.NOW, cloud=True, history=True).slurm
    return time.monotonic() - began


GARBAGE = {
    "garbage": b"\x00\x00\x00\x10" + b"\xc1" * 16,
    "text": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "huge": b"\xff\xff\xff\xff" + b"x" * 4096,
    "long": (5).to_bytes(4, "big") + b"x" * 64,
    "other": msgspec.msgpack.encode({"protocol": "one"}),
    "parts": world_wire.HEAD_BYTES.to_bytes(1, "big"),
}


@pytest.mark.parametrize("words", GARBAGE.values(), ids=GARBAGE.keys())
def test_malformed_request_gets_no_world_and_stops_no_reader(bed: Bed, words: bytes) -> None:
    bed.server.offer(cycle(made()))
    with bed.line() as line:
        line.sendall(words)
        assert answers(bed) < 2.5
        line.settimeout(world_server.REQUEST_S + 5)
        try:
            said = line.recv(4096)
        except ConnectionResetError:
            said = b""
        assert len(said) < 200, "a head at most"
    assert answers(bed) < 2.5


def count_descriptors() -> int:
    """Return how many files this process has open, the server's and the readers' ends of lines."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "a user"])
def test_two_hundred_that_say_nothing_cost_a_few_descriptors(
    bed: Bed, monkeypatch, trusted: bool
) -> None:
    if not trusted:
        monkeypatch.setattr(world_server, "is_trusted_user_id", lambda _: False)
    most = world_server.MOST if trusted else world_server.MOST_OF_USER
    before = count_descriptors()
    with ExitStack() as lines:
        for _ in range(200):
            lines.enter_context(bed.line())
        assert answers(bed) < 2.5
        assert count_descriptors() - before - 200 <= most, "the server's ends of the lines"
        assert answers(bed) < 2.5
    until(lambda: count_descriptors() <= before, 5)


def test_reader_that_takes_no_answer_is_dropped(bed: Bed, monkeypatch) -> None:
    monkeypatch.setattr(world_server, "ANSWER_S", 0.5)
    many = replace(made(), slurm=replace(worlds.slurm(), nodes={
        f"n{i}": worlds.slurm_node(i, name=f"n{i}") for i in range(20_000)
    }))  # fmt: skip
    bed.server.offer(cycle(many))
    with ExitStack() as lines:
        for _ in range(20):
            line = lines.enter_context(bed.line())
            line.sendall(world_wire.encode_world_request(world_wire.WorldPart))
        until(lambda: any(c.out for c in [*bed.server.clients.values()]), 5, every=0.001)
        assert (
            len({id(d.obj) for c in [*bed.server.clients.values()] for d in (c.out or ())[1:]})
            <= 400
        )
        assert answers(bed) < 3.0
        until(lambda: not bed.server.clients, 10)


def test_older_worlds_that_are_still_read_are_few(bed: Bed) -> None:
    nodes = {f"n{i}": worlds.slurm_node(i, name=f"n{i}") for i in range(20_000)}
    many = replace(made(), slurm=replace(worlds.slurm(), nodes=nodes))
    with ExitStack() as lines:
        for _ in range(6):
            bed.server.offer(cycle(many))
            line = lines.enter_context(bed.line())
            line.sendall(world_wire.encode_world_request([world_wire.WorldPart.SLURM]))
            number = bed.server.number
            until(lambda n=number: any(c.number == n for c in [*bed.server.clients.values()]), 10)
        held = {client.number for client in [*bed.server.clients.values()] if client.out}
        assert len(held) <= world_server.KEPT


def test_a_bug_in_the_server_costs_one_answer(bed: Bed, monkeypatch) -> None:
    bed.server.offer(cycle(made()))
    with monkeypatch.context() as patch:
        patch.setattr(world_server, "encode_frames", lambda *_: 1 / 0)
        with bed.line() as other:
            with pytest.raises(WorldUnavailableError, match="does not answer"):
                bed.read()
            other.sendall(world_wire.encode_world_request([]))
            assert other.recv(1), "the other reader asked for nothing that is broken"
    until(lambda: not isinstance(attempted(bed), WorldUnavailableError), 10)


def test_a_world_is_read_offline_where_no_daemon_offers_one(
    bed: Bed, tmp_path, monkeypatch
) -> None:
    bed.server.offer(cycle(made()))
    assert WorldReader(bed.config).read(worlds.NOW, slurm=True).computed == ""
    monkeypatch.setattr(
        "hpctl.engine.world_offline.read_world_offline", lambda *_, **__: worlds.world()
    )
    assert "past" in WorldReader(bed.config).read(worlds.NOW, past=True).computed
    (tmp_path / "world.sock").rename(tmp_path / "away")
    assert "is not there" in WorldReader(bed.config).read(worlds.NOW).computed
    (tmp_path / "away").rename(tmp_path / "world.sock")


def test_every_field_of_the_state_arrives_or_is_known_not_to(bed: Bed) -> None:
    """A new field of a view or a state must be thought of here."""
    told = {*EngineState.__struct_fields__} - {"retired"}
    derived = {"open_nodes", "open_jobs", "open_changes", "attempts", "last_of_node"}
    sent = {
        "nodes",
        "jobs",
        "changes",
        "reports",
        *world_wire.MiscellaneousJournalState.__struct_fields__,
    }
    assert told == derived | sent
    local = {
        "able_since", "absent", "begun", "silent_at", "ruled", "maintenance", "hangs", "worked",
        "flaws", "withdrawn", "reading", "preemption", "requeue_codes",
    }  # fmt: skip
    shown = {
        "scheduler", "provider", "health", "assessments", "state", "instances", "unjoined",
        "current", "stopped", "reservations", "leaves", "placed", "still",
    }  # fmt: skip
    assert {*PlanningView.__struct_fields__} == local | shown
    assert world_client.CURRENT_S >= 30


def test_reading_a_world_loads_nothing_that_only_offline_reading_needs(
    bed: Bed, tmp_path: Path
) -> None:
    """Where a program may have closed a node, the fault table says which Reasons are Slurm's."""
    world = made()
    assert world.slurm is not None
    by_alice = {n: replace(node, reason_by="alice") for n, node in world.slurm.nodes.items()}
    world = replace(world, slurm=replace(world.slurm, nodes=by_alice))
    bed.server.offer(cycle(world))
    heavy = (
        "sqlalchemy boto3 pydantic rich asyncio concurrent.futures hpctl.faults.table hpctl.slurm"
        " hpctl.sagemaker hpctl.engine.gates hpctl.engine.world_offline"
    )
    code = (
        "import sys; from pathlib import Path; from hpctl.engine.config import Config\n"
        "from hpctl.cli import status, nodes, recoveries\n"
        "from hpctl.engine.status_view import read_cluster_status, make_cluster_status_view\n"
        f"view = read_cluster_status(Config(state_dir=Path({str(tmp_path)!r})))\n"
        "assert view.node_recoveries, view\n"
        f"found = {{*{heavy!r}.split()}} & {{*sys.modules}}\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
