"""Notifications to real sinks on loopback: a webhook, a mail server, Slurm's MailProg."""

import json
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiosmtpd.controller import Controller
from msgspec.structs import replace

from hpctl.engine.clock import SystemClock
from hpctl.engine.config import Config, NotificationRouteSection, NotificationSection, SlurmSection
from hpctl.engine.journal.events import Event, GateBlocked, JobRecoveryOpened, SignalSeen
from hpctl.engine.journal.state import EngineState
from hpctl.engine.journal.store import JournalStore
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.loop_port import RecoveryLoopAccess
from hpctl.service.metrics import DaemonMetrics
from hpctl.service.notify import daemon, decide, outbox, sinks
from hpctl.service.notify.daemon import Notifier
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.hostlist import expand_hostlist
from hpctl.vocabulary.identity import JobId, RecoveryId, RuleId
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.fakes.values import attempt, generation, node_name, opened, slurm_job, slurm_node
from tests.process import free_port
from tests.waiting import until

pytestmark = pytest.mark.integration


class Webhook:
    """A server that takes JSON, and does as `moods` say first: a status, or a number of seconds."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.moods: list[int | float] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                mood = hook.moods.pop(0) if hook.moods else 200
                if isinstance(mood, float):
                    time.sleep(mood)
                if mood == 200:
                    hook.got.append(json.loads(body))
                self.send_response(int(mood) if mood >= 200 else 503)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=[0.02], daemon=True).start()
        self.url = f"json://127.0.0.1:{self._server.server_port}/"

    @property
    def texts(self) -> list[str]:
        return [f"{m['title']}\n{m['message']}" for m in self.got]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class Head:
    """The journal of a head node, and the notifiers that one daemon after another has."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.store = JournalStore(f"sqlite:///{place}/journal.db")
        self.memory = JournaledState(self.store)
        self.slurm = SchedulerView(datetime.now(UTC), {f"n{i}": slurm_node(i) for i in range(200)})
        self.metrics = DaemonMetrics()
        self.running: list[Notifier] = []
        self.sinks: dict[str, str] = {}

    def sink(self, name: str, url: str) -> None:
        path = self.place / f"{name}.url"
        path.touch(0o600)
        path.write_text(url)
        self.sinks[name] = str(path)

    def start(self, **settings: Any) -> Notifier:
        slurm = (
            SlurmSection(bin=self.place) if (self.place / "scontrol").exists() else SlurmSection()
        )
        config = Config(notify=NotificationSection(self.sinks, **settings), slurm=slurm)
        here: Any = self
        port = RecoveryLoopAccess(here, self.memory, SystemClock(), lambda: None)
        told = Notifier(config, self.store, port, self.metrics)
        told.start()
        self.running.append(told)
        until(lambda: self.store.outbox())
        return told

    def happens(self, *events: Event) -> None:
        self.memory.append(list(events))
        for told in self.running:
            told.look()

    def counted(self, outcome: str, sink: str = "ops") -> float:
        labels = {"sink": sink, "outcome": outcome}
        return self.metrics.registry.get_sample_value("hpctl_notifications_total", labels) or 0


@pytest.fixture
def hook() -> Iterator[Webhook]:
    found = Webhook()
    yield found
    found.close()


@pytest.fixture
def head(tmp_path: Path, hook: Webhook, monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setattr(daemon, "AGAIN_S", (0.05, 0.2))
    monkeypatch.setattr(daemon, "LOOK_S", 0.05)
    monkeypatch.setattr("hpctl.service.notify.outbox.CALM_S", 0.3)
    found = Head(tmp_path)
    found.sink("ops", hook.url)
    yield found
    for told in found.running:
        told.stop()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("notify")], 30)
    found.store.close()


def escalated(*numbers: int) -> list[Event]:
    now, found = datetime.now(UTC), list[Event]()
    for n in numbers:
        rid, node = RecoveryId(f"n-{n}"), generation(node_name(n))
        found.append(replace(opened(node), at=now, recovery=rid, generation=node))
        found.append(SignalSeen(now, rid, "needs_human", "replace: rejected (AccessDenied)"))
    return found


def job_ends(job: int, signal: str, user: str = "ann", name: str = "train") -> list[Event]:
    now, rid = datetime.now(UTC), RecoveryId(f"j-{job}")
    begun = JobRecoveryOpened(
        now, rid, attempt(job), RecoveryId(""), (node_name(1),), "its node", name, user, "all"
    )
    if signal == "proved":
        on = ["stop_wanted", "queued", "started", "running_seen", "proved"]
        return [begun, *(SignalSeen(now, rid, one, "ran for 30 s") for one in on)]
    return [begun, SignalSeen(now, rid, signal, "the policy allows no further restart")]


def test_an_escalation_reaches_the_webhook_and_says_what_to_do(head: Head, hook: Webhook) -> None:
    head.happens(*escalated(9))  # before anybody was to be told
    head.start(quiet="00:00-23:59")
    head.happens(*escalated(1))
    until(lambda: hook.got)  # in a minute, and not when the quiet hours are over
    assert hook.texts[0].splitlines() == [
        hook.texts[0].splitlines()[0],
        "n1: GPU fell off the bus. Escalated to on-call: replace: rejected (AccessDenied).",
        "hpctl takes no further step on this node.",
        "A person is needed: on-call to repair n1 and run `hpctl undrain n1`, or to run"
        " `hpctl replace n1`.",
        "Next: hpctl explain n1",
    ]
    assert hook.got[0]["title"].endswith("] escalated: n1")
    time.sleep(0.5)
    assert len(hook.got) == 1
    until(lambda: head.counted("sent") == 1)


def test_a_mass_event_of_a_hundred_nodes_is_one_message(
    head: Head, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    gather_s = outbox.GATHER_S
    # A busy machine may need longer to store and to read what comes within a second.
    monkeypatch.setattr(outbox, "GATHER_S", 600.0)
    head.start()
    why = "100 of 200 nodes report xid-79 within 10 min: the check is broken or the fabric is"
    held = [
        GateBlocked(datetime.now(UTC), f"n{n}", "correlated", why, RuleId("xid-79"), True)
        for n in range(100, 200)
    ]
    for first in range(0, 100, 10):  # as agents report, within a second
        head.happens(*held[first : first + 10])
        time.sleep(0.05)
    head.happens(*escalated(*range(1, 100)))

    def count_waiting() -> int:
        kept = msgspec.json.decode(head.store.outbox() or "", type=outbox.Outbox)
        return len(kept.posted)

    until(lambda: count_waiting() == 199)
    monkeypatch.setattr(outbox, "GATHER_S", gather_s)
    until(lambda: len(hook.got) == 2, 20)
    time.sleep(1)
    assert sorted(m["title"].partition("] ")[2] for m in hook.got) == [
        "escalated: 99, n[1-9],n[10-99]",
        "mass event: 100, n[100-199]",
    ]
    mass = next(t for t in hook.texts if "mass event" in t)
    assert "and 90 more: hpctl recoveries --all" in mass
    assert "A person is needed: " in mass
    assert "hpctl approve --rule xid-79" in mass


@pytest.mark.parametrize(
    "moods",
    [[500, 429, 404], pytest.param([500, 429, 0.6, 503, 404] * 4, marks=pytest.mark.nightly)],
    ids=["three", "twenty"],
)
def test_no_notice_is_lost_while_the_sink_refuses(moods, head, hook, monkeypatch):
    monkeypatch.setattr(sinks, "SEND_S", 3.0)
    told = head.start(per_hour=1000)
    hook.moods = list(moods)
    for n in range(1, len(moods) + 1):
        head.happens(*escalated(n))
        time.sleep(0.3)
    until(lambda: "error=" in told.trouble or not hook.moods, 30)
    everybody = {f"n{n}" for n in range(1, len(moods) + 1)}
    until(
        lambda: everybody == {n for m in hook.got for n in expand_hostlist(m["title"].split()[-1])},
        120,
    )
    assert head.counted("failed") >= len(moods)
    until(lambda: not told.trouble)


def test_a_sink_that_is_away_is_named_and_gets_its_messages_from_the_next_daemon(head, hook):
    path = Path(head.sinks["ops"])
    path.chmod(0o644)
    head.sink("dead", "json://u:hunter2hunter2@127.0.0.1:9/t0kent0ken")
    first = head.start()
    until(lambda: len(first.trouble.split("; ")) == 2)
    assert f"cannot use the notification sink ops: other users can read {path}" in first.trouble
    assert "sink dead does not answer on port 9: " in first.trouble
    head.happens(*escalated(1))
    until(lambda: "A Connection error occurred" in first.trouble, 20)
    assert "hunter2" not in first.trouble
    assert "t0ken" not in first.trouble
    first.stop()
    path.chmod(0o600)
    del head.sinks["dead"]
    head.start()
    until(lambda: "n1: GPU" in "".join(hook.texts), 20)


def test_what_was_sent_and_cannot_be_noted_is_sent_again_by_the_next_daemon_alone(
    head: Head, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, tries = head.store.save_outbox, list[str]()

    def full(payload: str) -> None:
        if '"sent":"' in payload:
            tries.append(payload)
            raise OSError("No space left on device")
        kept(payload)

    monkeypatch.setattr(head.store, "save_outbox", full)
    first = head.start()
    head.happens(*escalated(1))
    until(lambda: len(tries) > 2, 20)
    assert [m["title"].partition("] ")[2] for m in hook.got] == ["escalated: n1"]
    first.stop()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("notify")], 30)
    head.running.clear()
    head.start()
    until(lambda: len(hook.got) == 2, 20)
    head.happens(*escalated(2))
    full_for = len(tries)
    until(lambda: len(tries) > full_for + 2, 20)
    monkeypatch.setattr(head.store, "save_outbox", kept)
    until(lambda: len(hook.got) == 3, 20)  # of n2, though nothing has happened since
    time.sleep(1)
    titles = [m["title"].partition("] ")[2] for m in hook.got]
    assert titles == ["escalated: n1", "escalated: n1", "escalated: n2"]
    assert (head.store.outbox() or "").count('"sent":"') == 2


def test_what_no_sink_is_sent_any_longer_is_in_the_log(head, monkeypatch, caplog):
    """Notices that are too old, waiting or still to be read, and an outbox of no known shape."""
    head.sink("ops", "json://127.0.0.1:9")
    first = head.start()
    head.happens(*escalated(1))
    until(lambda: '"n1"' in (head.store.outbox() or ""))
    first.stop()
    head.running.clear()
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("notify")], 30)
    for module in (daemon, outbox):
        monkeypatch.setattr(module, "KEEP_S", 0.0)
    monkeypatch.setattr(outbox, "HOUR", timedelta(0))
    head.happens(*escalated(2))
    head.start()
    until(lambda: "escalated of n2" in caplog.text)
    head.happens(*escalated(3))
    until(lambda: all(f"escalated of n{n}" in caplog.text for n in (1, 3)))
    head.running[0].stop()
    head.store.save_outbox('{"position": "x"}')
    head.start()
    until(lambda: "the outbox is unreadable: Expected `int`" in caplog.text)


def test_routes_and_owners(head: Head, hook: Webhook) -> None:
    """By kind, partition and account; and a job's owner as Slurm's --mail-type has it."""
    letters: list[tuple[list[str], str]] = []

    class Letters:
        async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:
            letters.append((envelope.rcpt_tos, envelope.content.decode()))
            return "250 OK"

    jobs = {
        1: ("physics", "   MailUser=ann@x.org MailType=FAIL,REQUEUE\n"),
        2: ("physics", "   MailUser=bob@x.org MailType=END\n"),
        3: ("chemistry", "   MailUser=-oQ/tmp MailType=FAIL\n"),
    }
    head.slurm = SchedulerView(
        head.slurm.as_of, head.slurm.nodes, {JobId(n): slurm_job(n) for n in jobs}
    )
    for name, column in (("squeue", 0), ("scontrol", 1)):
        case = "".join(f"*={n}|{n}) printf '%s' '{row[column]}';;\n" for n, row in jobs.items())
        script = f"#!/bin/sh\nfor last; do :; done\n[ $0 = {head.place}/squeue ] && last=$3\n"
        (head.place / name).write_text(f'{script}case "$last" in\n{case}esac\n')
        (head.place / name).chmod(0o755)
    port = free_port()
    server = Controller(Letters(), hostname="127.0.0.1", port=port)
    server.start()
    try:
        head.sink("mail", f"mailto://127.0.0.1:{port}?from=hpctl@x.org&to={{mail}}")
        to_ops = (
            NotificationRouteSection(("ops",), kinds=("escalated",), partitions=("all",)),
            NotificationRouteSection(("ops",), accounts=("chemistry",)),
        )
        head.start(routes=to_ops, users="mail")
        evil = "x\r\nBcc: all@x.org\r\n\r\n@everyone <!channel>"
        ends = [job_ends(1, "refused", name=evil), job_ends(2, "refused"), job_ends(3, "refused")]
        head.happens(*escalated(1), *(e for one in ends for e in one))
        until(lambda: letters and len(hook.got) == 2, 20)
    finally:
        server.stop()
    titles = sorted(m["title"].partition("] ")[2] for m in hook.got)
    assert titles == ["escalated: n1", "job gave up: 3"]
    ((to, text),) = letters
    assert to == ["ann@x.org"]
    header, _, body = text.replace("\r\n", "\n").partition("\n\n")
    assert "Bcc" not in header
    assert "job gave up: 1" in header.replace("\n ", " ")
    assert "@everyone" not in body


def test_a_standby_that_goes_silent_is_reported_once(head: Head, hook: Webhook) -> None:
    told = head.start()
    for silent in ((), ("head-2",), ("head-2",)):
        told.look(frozenset(silent))
    until(lambda: hook.got)
    assert hook.got[0]["title"].endswith("] standby lost: head-2")
    assert "hpctl continues; no other head node can take over." in hook.texts[0]
    time.sleep(0.5)
    assert len(hook.got) == 1


def test_a_standby_that_went_silent_while_the_disk_was_full_is_reported(
    head: Head, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, kept, tries = head.start(), head.store.save_outbox, list[str]()

    def full_once(payload: str) -> None:
        tries.append(payload)
        if len(tries) == 1:
            raise OSError("No space left on device")
        kept(payload)

    monkeypatch.setattr(head.store, "save_outbox", full_once)
    told.look(frozenset({"head-2"}))
    until(lambda: hook.got, 20)
    assert hook.got[0]["title"].endswith("] standby lost: head-2")
    time.sleep(0.5)
    assert len(hook.got) == 1


def test_an_event_of_a_clock_set_back_since_holds_up_nothing(head: Head, hook: Webhook) -> None:
    head.start()
    ahead = datetime.now(UTC) + timedelta(hours=2)
    head.store.append([SignalSeen(ahead, RecoveryId("gone"), "needs_human", "")])
    head.happens(*escalated(1))
    until(lambda: hook.got, 10)


def test_a_preemption_goes_to_no_sink_that_does_not_ask_for_it(head: Head, hook: Webhook) -> None:
    begun, *_ = job_ends(7, "proved")
    rid = RecoveryId("j-7")
    noted = replace(begun, why="it was preempted", note="hpctl: preempted")
    over = SignalSeen(datetime.now(UTC), rid, "called_off", "Slurm starts it again")
    head.start()
    head.happens(noted, over, *escalated(1))
    until(lambda: hook.got, 10)
    posted = msgspec.json.decode(head.store.outbox() or "", type=outbox.Outbox).posted
    assert {row.notice.kind for row in posted} == {"escalated"}
    state = EngineState()
    for event in (noted, over):
        state.fold(event)
    told = decide.make_event_notice(over, state, SchedulerView(datetime.now(UTC)), RecoveryPolicy())
    assert told is not None
    assert (told.kind, told.person, told.job) == ("job_preempted", "", 7)
    assert "it was preempted" in told.what


def test_mail_program(head: Head) -> None:
    mailer = head.place / "mailer"
    mailer.write_text(f'#!/bin/sh\nprintf "%s|" "$@" >{head.place}/out\ncat >>{head.place}/out\n')
    mailer.chmod(0o755)
    (head.place / "scontrol").write_text(
        "#!/bin/sh\ncase $2 in\nconfig) echo 'MailProg                = "
        f"{mailer}';;\n*) echo '   MailUser=ann MailType=BEGIN,FAIL,REQUEUE';;\nesac\n"
    )
    (head.place / "squeue").write_text("#!/bin/sh\necho physics\n")
    for name in ("scontrol", "squeue"):
        (head.place / name).chmod(0o755)
    head.sinks.clear()
    head.start(users="mailprog")
    head.happens(*job_ends(7, "proved"))
    out = head.place / "out"
    until(lambda: out.exists() and "Next" in out.read_text())
    assert "] job resumed: 7|ann|Job 7 (train), affected by n1. Running again" in out.read_text()
    until(lambda: head.counted("sent", "mailprog") == 1)


def test_an_address_that_takes_no_mail_keeps_no_other_user_waiting(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "AGAIN_S", (600.0, 600.0))
    monkeypatch.setattr(daemon, "pick_random_pause_seconds", lambda _, longest: longest)
    mailer = head.place / "mailer"
    mailer.write_text(f'#!/bin/sh\necho "$3" >>{head.place}/out\n[ "$3" != ann ]\n')
    mailer.chmod(0o755)
    (head.place / "scontrol").write_text(
        f"#!/bin/sh\ncase $2 in\nconfig) echo 'MailProg = {mailer}'; exit;;\nesac\n"
        "case $3 in\n5) user=ann;;\n*) user=bob;;\nesac\n"
        'echo "   MailUser=$user MailType=REQUEUE"\n'
    )
    (head.place / "squeue").write_text("#!/bin/sh\necho physics\n")
    for name in ("scontrol", "squeue"):
        (head.place / name).chmod(0o755)
    head.sinks.clear()
    head.start(users="mailprog")
    head.happens(*job_ends(5, "proved"))
    out = head.place / "out"
    until(lambda: out.exists() and out.read_text() == "ann\n", 60)
    head.happens(*job_ends(6, "proved", "bob"))
    until(lambda: head.counted("sent", "mailprog") == 1, 60)
    assert out.read_text() == "ann\nbob\n"


def test_what_comes_while_a_users_mail_fails_has_its_own_tries(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "AGAIN_S", (0.01, 0.01))
    calls, go = head.place / "calls", head.place / "go"
    mailer = head.place / "mailer"
    mailer.write_text(
        f"#!/bin/sh\necho >>{calls}\nmade=$(wc -l <{calls})\n"
        f"while [ $made = {daemon.TRIES - 1} ] && ! [ -e {go} ]; do sleep 0.05; done\n"
        f"[ $made -gt {daemon.TRIES} ] || exit 1\ncat >>{head.place}/out\n"
    )
    (head.place / "scontrol").write_text(
        f"#!/bin/sh\ncase $2 in\nconfig) echo 'MailProg = {mailer}'; exit;;\nesac\n"
        "echo '   MailUser=ann MailType=REQUEUE'\n"
    )
    (head.place / "squeue").write_text("#!/bin/sh\necho physics\n")
    for name in ("mailer", "scontrol", "squeue"):
        (head.place / name).chmod(0o755)
    head.sinks.clear()
    told = head.start(users="mailprog")
    head.happens(*job_ends(5, "proved"))
    until(lambda: calls.exists() and len(calls.read_text()) == daemon.TRIES - 1, 60)
    head.happens(*job_ends(6, "proved"))
    until(lambda: len(told._outbox.posted) == 2, 60)
    go.touch()
    out = head.place / "out"
    until(lambda: out.exists() and "Job 6" in out.read_text(), 60)
    assert "Job 5" not in out.read_text()
    until(lambda: not told._retries, 60)


@pytest.mark.parametrize("command", ["scontrol", "squeue"])
@pytest.mark.parametrize("patience_s", [600.0, 2.0])
def test_an_owner_is_notified_once_slurmctld_answers_and_others_do_not_wait_forever(
    command: str, patience_s: float, head: Head, hook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "ASK_S", patience_s)
    says = {
        "scontrol": "case $2 in config) echo MailProg = /bin/true;;"
        " *) echo '   MailUser=ann MailType=FAIL';; esac",
        "squeue": "echo physics",
    }
    away = head.place / "away"
    away.write_text("Unable to contact slurm controller (connect failure)")
    for name, what in says.items():
        check = f"[ -e {away} ] && {{ cat {away} >&2; exit 1; }}\n" if name == command else ""
        (head.place / name).write_text(f"#!/bin/sh\n{check}{what}\n")
        (head.place / name).chmod(0o755)
    head.start(users="mailprog")
    begun = time.monotonic()
    head.happens(*job_ends(7, "refused"), *escalated(1))
    time.sleep(1)
    assert not hook.got or time.monotonic() - begun > patience_s
    if patience_s > 60:
        away.write_text("slurm_load_jobs error: Socket timed out on send/recv operation")
        time.sleep(1)
        away.unlink()
        until(lambda: head.counted("sent", "mailprog") == 1, 20)
    until(lambda: len(hook.got) == 2, 20)
    titles = sorted(m["title"].partition("] ")[2] for m in hook.got)
    assert titles == ["escalated: n1", "job gave up: 7"]


def test_a_job_that_slurm_has_forgotten_holds_up_nothing(head: Head, hook: Webhook) -> None:
    for name in ("scontrol", "squeue"):
        text = "#!/bin/sh\necho slurm_load_jobs error: Invalid job id specified >&2\nexit 1\n"
        (head.place / name).write_text(text)
        (head.place / name).chmod(0o755)
    head.start(users="mailprog")
    head.happens(*job_ends(7, "refused"))
    until(lambda: hook.got, 20)


@pytest.mark.parametrize(
    ("url", "mode", "why", "fix"),
    [
        (
            None,
            0o600,
            "No such file or directory",
            ("write the sink's URL into the file, and run: chmod 0640"),
        ),
        ("json://x", 0o604, "other users can read", "chmod 0640"),
        ("nothing", 0o600, "must contain exactly one URL", "json://host/path"),
        ("jsom://127.0.0.1/secretsecret", 0o600, "Unparseable URL ", "wiki"),
        ("json://x\0y", 0o640, "must contain exactly one URL", "json://host/path"),
        ("json://127.0.0.1:9/", 0o640, "does not answer on port 9", "may connect"),
    ],
)
def test_a_sink_that_cannot_work_is_named_with_its_fix(url, mode, why, fix, tmp_path):
    path = tmp_path / "url"
    if url is not None:
        path.write_text(url)
        path.chmod(mode)
    (error,) = sinks.list_unusable_sink_errors({"ops": str(path)}, reach=True)
    assert str(error).startswith(
        ("cannot use the notification sink ops: ", "the service of the notification sink ops ")
    )
    assert why in str(error)
    assert "secret" not in str(error)
    assert fix in error.hint


def test_without_apprise_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "json://127.0.0.1/")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    (error,) = sinks.list_unusable_sink_errors({"ops": "env:HOOK"})
    assert "pip install 'hpctl[notify]'" in str(error)
