"""The intake over real HTTP with real munged: what it believes, and all that it must refuse."""

import http.client
import itertools
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from hpctl.service.intake import app
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.wire import munge
from hpctl.wire import reports as wire
from tests.intakes import Head, announced, credential
from tests.munged import ADDRESSES, Realm
from tests.reports import NOON, report
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]


def assert_refused(head: Head, answer: tuple[int, dict[str, Any]], status: int, code: str) -> None:
    assert answer[0] == status, answer
    assert answer[1]["error"] == code
    assert answer[1]["message"]
    assert head.refused() == {code: 1}
    assert head.accepted == []


def test_a_true_report_is_stored_before_it_is_acknowledged(head: Head) -> None:
    stored = threading.Event()

    def slowly(received):
        time.sleep(0.2)
        head.accepted.append(received)
        stored.set()

    head.accept = slowly
    assert head.send(report()) == (200, {"ack": 1})
    assert stored.is_set()
    assert head.accepted == [report()]
    assert "hpctl_reports_total 1.0" in head.get("/metrics")
    assert head.refused() == {}
    assert json.loads(head.get("/healthz")) == {"status": "ok"}


Ask = Callable[[Head], tuple[int, dict[str, Any]]]

NOT_BELIEVED: dict[str, tuple[Ask, int, str]] = {
    "no credential": (
        lambda h: h.post(wire.encode_agent_report(report()), None),
        401,
        "missing_credential",
    ),
    "an empty credential": (
        lambda h: h.post(wire.encode_agent_report(report()), "MUNGE "),
        401,
        "missing_credential",
    ),
    "another scheme": (lambda h: h.post(b"{}", "Bearer abc"), 401, "missing_credential"),
    "another key": (lambda h: h.send(report(), h.realm.stranger), 401, "invalid_credential"),
    "a credential of another body": (
        lambda h: h.post(wire.encode_agent_report(report(seq=2)), credential(h.realm.n1, b"{}")),
        401,
        "bad_digest",
    ),
    "a credential of nothing": (
        lambda h: h.post(
            wire.encode_agent_report(report()),
            f"MUNGE {munge.encode_munge_credential(b'', h.realm.n1)}",
        ),
        401,
        "bad_digest",
    ),
    "another node's credential": (lambda h: h.send(report(), h.realm.n2), 403, "forged_node"),
    "a node that Slurm lacks": (lambda h: h.send(report("n9")), 403, "unknown_node"),
    "no JSON": (lambda h: h.send(b"not json"), 400, "malformed"),
    "nothing": (lambda h: h.send(b""), 400, "malformed"),
    "another version": (lambda h: h.send(b'{"v":2}'), 400, "unsupported_version"),
    "no report": (lambda h: h.send(b'{"v":1,"report":{"node":"n1"}}'), 422, "invalid_report"),
}


@pytest.mark.parametrize("name", NOT_BELIEVED)
def test_what_is_not_believed_is_refused(head: Head, name: str) -> None:
    ask, status, code = NOT_BELIEVED[name]
    assert_refused(head, ask(head), status, code)


def test_replays_and_older_reports_are_stale_and_a_newer_run_starts_over(head: Head) -> None:
    body = wire.encode_agent_report(report(seq=7))
    authorization = credential(head.realm.n1, body)
    assert head.post(body, authorization)[0] == 200
    assert head.post(body, authorization)[1]["error"] == "replayed_credential"
    newer = NOON + timedelta(seconds=1)
    for what, status in (
        (body, 409), (report(seq=6), 409), (report(seq=1, start=newer), 200), (report(seq=99), 409),
    ):  # fmt: skip
        assert head.send(what)[0] == status
    assert [(r.seq, r.agent_start) for r in head.accepted] == [(7, NOON), (1, newer)]


def test_slurm_not_asked_yet_is_no_reason_to_forget_the_report(head: Head) -> None:
    def not_yet(_: str) -> str | None:
        raise ServiceUnavailable("slurmctld was not heard yet")

    head.address_of = not_yet
    assert_refused(head, head.send(report()), 503, "slurm_unavailable")


def test_an_address_given_as_a_host_name(head: Head) -> None:
    head.address_of = lambda _: "localhost"
    assert head.send(report())[1]["error"] == "forged_node"
    head.address_of = lambda _: "no-such-host.invalid"
    assert head.send(report())[1]["error"] == "slurm_unavailable"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can encode as another user")
def test_an_ordinary_user_of_the_node(head: Head) -> None:
    body = wire.encode_agent_report(report())
    made = subprocess.run(
        ["munge", f"--socket={head.realm.n1}"],
        input=wire.make_request_credential_payload(body), user=65534, group=65534, extra_groups=[],
        capture_output=True, check=True, timeout=60,
    )  # fmt: skip
    answer = head.post(body, f"MUNGE {made.stdout.decode().strip()}")
    assert_refused(head, answer, 403, "forbidden_uid")


def test_too_large_as_announced(head: Head) -> None:
    assert announced(head.server.port, wire.PATH, wire.MAX_BODY + 1) == 413
    assert head.refused() == {"too_large": 1}


def test_too_slow_a_body(head: Head, monkeypatch) -> None:
    monkeypatch.setattr(app, "BODY_TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", head.server.port), timeout=PATIENCE_S) as client:
        client.sendall(
            f"POST {wire.PATH} HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nx".encode()
        )
        assert b"408" in client.recv(4096).partition(b"\r\n")[0]
    assert head.refused() == {"slow_body": 1}


def test_our_own_munged_away(munges: Realm, tmp_path) -> None:
    head = Head(munges, munge_socket=tmp_path / "none")
    head.server.start()
    try:
        answer = head.send(report())
        assert_refused(head, answer, 503, "munge_unavailable")
        assert "systemctl status munge" in answer[1]["hint"]
    finally:
        head.server.stop()


def test_a_journal_that_fails_is_not_an_acknowledgement(head: Head) -> None:
    def broken(_):
        raise OSError(28, "No space left on device")

    head.accept = broken
    assert_refused(head, head.send(report()), 503, "journal_unavailable")
    # It was not believed, so the same report is not stale once the journal works again.
    head.accept = head.accepted.append
    assert head.send(report()) == (200, {"ack": 1})


def test_reports_of_one_node_never_overtake_each_other(head: Head) -> None:
    first_is_in, let_go = threading.Event(), threading.Event()

    def slow_first(received):
        if (received.node, received.seq) == ("n1", 1):
            first_is_in.set()
            let_go.wait(PATIENCE_S)
        head.accepted.append(received)

    head.accept = slow_first
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda s=seq: answers.append(head.send(report(seq=s))[0]))
        for seq in (1, 2)
    ]
    threads[0].start()
    assert first_is_in.wait(PATIENCE_S)
    threads[1].start()
    assert head.send(replace(report(seq=1), node="n2"), head.realm.n2)[0] == 200
    let_go.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert answers == [200, 200]
    assert [r.seq for r in head.accepted if r.node == "n1"] == [1, 2]


def test_answers_on_a_kept_connection_are_not_held_back(head: Head) -> None:
    """Nagle's algorithm and delayed acknowledgements would make each answer wait 40 ms."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", head.server.port, timeout=PATIENCE_S, source_address=(ADDRESSES["n1"], 0)
    )
    seqs = itertools.count(1)

    def measure() -> list[float]:
        took = []
        for seq in itertools.islice(seqs, 40):
            body = wire.encode_agent_report(report(seq=seq))
            headers = {"Authorization": credential(head.realm.n1, body)}
            before = time.monotonic()
            connection.request("POST", wire.PATH, body, headers)
            assert json.loads(connection.getresponse().read()) == {"ack": seq}
            took.append(time.monotonic() - before)
        return took

    # Held back, no answer of any series would come sooner; a busy machine delays some of them.
    until(lambda: sorted(measure())[10] < 0.03)
    connection.close()


def test_stop_is_bounded_with_connections_open(munges: Realm) -> None:
    head = Head(munges)
    head.server.start()
    with socket.create_connection(("127.0.0.1", head.server.port), timeout=PATIENCE_S) as idle:
        idle.sendall(b"POST ")
        before = time.monotonic()
        head.server.stop()
        assert time.monotonic() - before < PATIENCE_S / 2
    with pytest.raises(ConnectionRefusedError):
        head.get("/healthz")
