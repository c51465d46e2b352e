"""Sessions over real HTTP with real munged: what they prove, and how they end."""

import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from hpctl.wire import authentication, munge
from hpctl.wire import reports as wire
from tests.intakes import Head, Session, credential
from tests.munged import ADDRESSES, Realm
from tests.reports import beat, report
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


@pytest.fixture
def head(head: Head) -> Head:
    head.heard = lambda heartbeat: head.beats.append(heartbeat) is None
    return head


def refused(answer: tuple[int, dict[str, str]], status: int, code: str, head: Head) -> None:
    assert (answer[0], answer[1]["error"]) == (status, code), answer
    assert answer[1]["message"]
    assert head.refused() == {code: 1}
    assert (len(head.accepted), head.beats) == (1, [])


def test_a_session_carries_reports_and_heartbeats_without_munged(head: Head) -> None:
    session = Session(head)
    assert session.send(session.heartbeat()) == (200, {"ack": 2})
    assert session.send(session.report()) == (200, {"ack": 3})
    assert session.send(session.heartbeat()) == (200, {"ack": 4})
    assert [b.seq for b in head.beats] == [2, 4]
    assert [r.seq for r in head.accepted] == [1, 3]
    assert "hpctl_heartbeats_total 2.0" in head.get("/metrics")
    assert "hpctl_reports_total 2.0" in head.get("/metrics")
    assert head.refused() == {}


def test_a_heartbeat_by_credential_opens_one_too(head: Head) -> None:
    body = wire.encode_heartbeat(beat(), open_session=True)
    status, answer = head.post(body, credential(head.realm.n1, body))
    assert (status, sorted(answer)) == (200, ["ack", "session"])


def test_the_key_is_for_the_one_who_asked(head: Head) -> None:
    session = Session(head)
    assert len(session.key) == wire.KEY_BYTES
    assert session.key not in str(session.granted).encode()
    with pytest.raises(munge.MungeCredentialError) as caught:
        munge.decode_munge_credential(session.granted["key"], head.realm.n1)
    assert caught.value.code == "replayed_credential"
    with pytest.raises(munge.MungeCredentialError) as caught:
        munge.decode_munge_credential(session.granted["key"], head.realm.stranger)
    assert caught.value.code == "invalid_credential"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a while")
def test_an_ordinary_user_cannot_unwrap_a_key(munges: Realm) -> None:
    wrapped = munge.encode_munge_credential(b"secret", munges.head, only_uid=0)
    os.seteuid(65534)
    try:
        with pytest.raises(munge.MungeCredentialError) as caught:
            munge.decode_munge_credential(wrapped, munges.n1)
        assert caught.value.code == "unauthorized_credential"
    finally:
        os.seteuid(0)
    assert munge.decode_munge_credential(wrapped, munges.n2).payload == b"secret"


def moved(session: Session, address: str | None) -> tuple[int, dict[str, Any]]:
    """A heartbeat of a node that Slurm has elsewhere by now, or has no more."""
    session.head.address_of = lambda _: address
    return session.send(session.heartbeat())


Ask = Callable[[Session], tuple[int, dict[str, Any]]]

NOT_BELIEVED: dict[str, tuple[Ask, int, str]] = {
    "another key": (
        lambda s: s.head.post(b"{}", wire.make_session_authorization(s.granted["id"], b"k" * 32,
        b"{}")),
        401, "bad_mac",
    ),
    "another body": (lambda s: s.head.post(s.report(), s.signed(b"other")), 401, "bad_mac"),
    "another session": (
        lambda s: s.head.post(b"{}", wire.make_session_authorization("0" * 32, s.key, b"{}")),
        401, "unknown_session",
    ),
    "another address": (
        lambda s: s.head.post(b"{}", s.signed(b"{}"), "127.0.9.9"), 401, "moved_session",
    ),
    "a node that is elsewhere": (lambda s: moved(s, "127.0.1.77"), 401, "moved_session"),
    "a node that is gone": (lambda s: moved(s, None), 403, "unknown_node"),
    "another node's report": (
        lambda s: s.send(wire.encode_agent_report(report("n2", 5))), 403, "forged_node",
    ),
    "another node's heartbeat": (
        lambda s: s.send(wire.encode_heartbeat(beat("n2", 5))), 403, "forged_node",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_BELIEVED)
def test_what_is_not_believed_is_refused(head: Head, name: str) -> None:
    ask, status, code = NOT_BELIEVED[name]
    refused(ask(Session(head)), status, code, head)


@pytest.mark.parametrize("proof", ["", ":", "x", "{id}", "{id}:", "{id}:\xe9", "{id}:" + "0" * 64])
def test_nonsense_in_its_place(head: Head, proof: str) -> None:
    session = Session(head)
    status, answer = head.post(
        session.heartbeat(), f"{wire.SESSION_SCHEME} {proof.format(id=session.granted['id'])}"
    )
    assert (status, answer["error"] in ("unknown_session", "bad_mac")) == (401, True)
    assert head.beats == []


def test_a_replayed_message(head: Head) -> None:
    session = Session(head)
    first, second = session.report(), session.heartbeat()
    assert session.send(first)[0] == 200
    assert session.send(second)[0] == 200
    for again in (first, second, first):
        assert session.send(again)[1]["error"] == "stale_report"
    assert head.refused() == {"stale_report": 3}
    assert (len(head.accepted), len(head.beats)) == (2, 1)


def test_a_session_ends_with_its_time(munges: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    late_s = [0.0]
    made = partial(authentication.AgentSessions, monotonic=lambda: time.monotonic() + late_s[0])
    monkeypatch.setattr(authentication, "AgentSessions", made)
    head = Head(munges, session_s=600.0)
    head.server.start()
    try:
        session = Session(head)
        assert session.granted["lasts_s"] == pytest.approx(600.0)
        assert session.send(session.report())[0] == 200
        late_s[0] = 600.0
        assert session.send(session.report())[1]["error"] == "expired_session"
        assert head.refused() == {"expired_session": 1}
        assert len(head.accepted) == 2
    finally:
        head.server.stop()


def test_a_new_session_ends_the_one_before(head: Head) -> None:
    session = Session(head)
    body = wire.encode_agent_report(report(seq=2), open_session=True)
    assert head.post(body, credential(head.realm.n1, body))[0] == 200
    session.seq = 5
    assert session.send(session.heartbeat())[1]["error"] == "unknown_session"


def test_a_refused_report_opens_nothing(head: Head) -> None:
    assert head.send(report(seq=3))[0] == 200
    body = wire.encode_agent_report(report(seq=3), open_session=True)
    status, answer = head.post(body, credential(head.realm.n1, body))
    assert (status, "session" in answer) == (409, False)


def test_a_digest_that_is_not_held_asks_for_the_findings(head: Head) -> None:
    session = Session(head)
    head.heard = lambda _: False
    brief = session.heartbeat()
    refused(session.send(brief), 409, "unknown_digest", head)
    assert session.send(session.report())[0] == 200


def test_a_heartbeat_does_not_wait_for_a_report_that_is_being_stored(head: Head) -> None:
    slow, beating = Session(head), Session(head, "n2", head.realm.n2)
    is_in, let_go = threading.Event(), threading.Event()

    def hang(received):
        is_in.set()
        let_go.wait(PATIENCE_S)
        head.accepted.append(received)

    head.accept = hang
    body = slow.report()
    storing = threading.Thread(target=slow.send, args=(body,))
    storing.start()
    assert is_in.wait(PATIENCE_S)
    assert beating.send(beating.heartbeat())[0] == 200
    later = slow.heartbeat()
    assert slow.send(later)[0] == 200
    let_go.set()
    storing.join(PATIENCE_S)
    # The heartbeat came after the report, which ended after it: neither may be sent again.
    for again in (body, later):
        assert slow.send(again)[1]["error"] == "stale_report"


def test_reports_that_wait_for_the_journal_are_stored_together(head: Head) -> None:
    batches: list[int] = []
    first_is_in, let_go = threading.Semaphore(0), threading.Event()
    head.address_of = lambda _: "127.0.1.2"

    def store(*reports):
        batches.append(len(reports))
        first_is_in.release()
        let_go.wait(PATIENCE_S)

    head.store_all = store
    names = [f"m{n}" for n in range(30)]
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(head.send(report(n))[0])) for n in names
    ]
    for thread in threads:
        thread.start()
    assert first_is_in.acquire(timeout=PATIENCE_S)
    time.sleep(1)
    let_go.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [200] * 30
    assert sum(batches) == 30
    assert len(batches) <= 5, batches


def test_answers_without_a_body_and_after_a_hundred_continue_come_at_once(head: Head) -> None:
    """The server keeps an answer's head back for its body: where there is none, it must not."""
    own = (ADDRESSES["n1"], 0)
    with socket.create_connection(("127.0.0.1", head.server.port), PATIENCE_S, own) as client:
        client.sendall(b"HEAD /healthz HTTP/1.1\r\nHost: h\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200")
        body = wire.encode_agent_report(report())
        client.sendall(
            f"POST {wire.PATH} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\n"
            f"Authorization: {credential(head.realm.n1, body)}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
        )
        assert client.recv(4096).startswith(b"HTTP/1.1 100")
        client.sendall(body)
        answer = client.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b'{"ack":1}'), "head and body in one piece"
        client.sendall(b"nonsense\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 400")
