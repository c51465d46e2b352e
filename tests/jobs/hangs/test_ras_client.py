"""The RAS client against a service on a socket, with and without JSON, and in trouble."""

import time
from pathlib import Path

import pytest

from hpctl.jobs.hangs.ras_report import (
    RasAddress,
    RasJsonUnsupportedError,
    RasQueryError,
    parse_ras_address,
    query_ras_service,
)
from tests.process import free_port
from tests.stubs.ras.job import job
from tests.stubs.ras.service import Fault, Service

pytestmark = pytest.mark.integration

LIMIT_S = 1.0
SLOW_S = 8.0
"""What a busy machine may add; the limit of the other tests is 10 s."""
ROOT = Path(__file__).resolve().parents[3]


def ask(service: Service, deadline_s: float = 10.0) -> object:
    return query_ras_service(RasAddress("localhost", service.port), deadline_s=deadline_s)


OLDEST_WITH_JSON, NEWEST = "2.28.7", "2.30.7"


@pytest.mark.parametrize("release", [OLDEST_WITH_JSON, NEWEST])
def test_each_release_with_json_is_understood(release: str) -> None:
    state = job()
    state.communicators[0].step(but=(5,))
    with Service(state, release) as service:
        report = query_ras_service(RasAddress("localhost", service.port))
    assert report.nccl_version == release
    groups = next(groups for groups in report.communicators[0].counts.values() if len(groups) == 2)
    assert [member.rank for member in groups[0].members] == [5]
    sent = "CLIENT PROTOCOL 2, TIMEOUT 5, SET FORMAT json, VERBOSE STATUS"
    assert service.commands == sent.split(", ")


def test_a_release_without_json_is_named_as_the_reason() -> None:
    with Service(job(), "2.28.3") as service, pytest.raises(RasJsonUnsupportedError) as caught:
        ask(service)
    assert str(caught.value) == "RAS answers no JSON before NCCL 2.28"
    assert "2.28.7" in caught.value.hint
    assert "VERBOSE STATUS" not in service.commands


@pytest.mark.parametrize("fault", [Fault.MUTE, Fault.MUTE_STATUS])
def test_a_mute_service_costs_no_more_than_the_deadline(fault: Fault) -> None:
    with Service(job(), fault=fault) as service:
        begun = time.monotonic()
        with pytest.raises(RasQueryError, match="no answer in time"):
            ask(service, LIMIT_S)
        assert time.monotonic() - begun < LIMIT_S + SLOW_S


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault.CLOSES, "closed the connection"),
        (Fault.NO_NEWLINE, "sent an incomplete answer"),
        (Fault.OTHER, "is not NCCL's RAS service"),
    ],
)
def test_what_else_may_listen_there(fault: Fault, text: str) -> None:
    with Service(job(), fault=fault) as service, pytest.raises(RasQueryError, match=text):
        ask(service, 5.0)


def test_an_endless_answer_is_cut(monkeypatch) -> None:
    monkeypatch.setattr("hpctl.jobs.hangs.ras_report.LARGEST_ANSWER", 1 << 20)
    with (
        Service(job(), fault=Fault.ENDLESS) as service,
        pytest.raises(RasQueryError, match="is longer than"),
    ):
        ask(service)


def test_nothing_is_sent_to_another_host(monkeypatch) -> None:
    """No other host can be had here: the kernel's table is asked as if this one were."""
    monkeypatch.setattr("hpctl.jobs.hangs.ras_report.find_local_peer_uid", lambda _: None)
    with Service(job()) as service:
        with pytest.raises(RasQueryError, match="is not an address of this node"):
            ask(service)
        assert service.commands == []


def test_where_no_one_listens() -> None:
    with pytest.raises(RasQueryError, match="cannot query NCCL's RAS service") as caught:
        query_ras_service(RasAddress("127.0.0.1", free_port()))
    assert "NCCL_RAS_ADDR" in caught.value.hint


def test_addresses_as_nccl_has_them() -> None:
    assert parse_ras_address() == RasAddress("localhost", 28028)
    assert parse_ras_address("localhost:9000") == RasAddress("localhost", 9000)
    assert parse_ras_address("[::1]:9000") == RasAddress("::1", 9000)
    for wrong in ("localhost", ":9000", "host:port", "host:0", "host:70000"):
        with pytest.raises(RasQueryError, match="HOST:PORT"):
            parse_ras_address(wrong)
