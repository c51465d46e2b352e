"""Requests of a feature, without a proof, about a pause, and ones whose answer breaks."""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import NoReturn

import pytest
from msgspec.structs import replace

from hpctl.engine.journal.events import Event, RequestTaken
from hpctl.engine.requests import process_operator_request, process_request_catching_errors
from hpctl.engine.view import PlanningView, Request
from hpctl.vocabulary.policy import RecoveryPolicy
from tests.fakes.values import OWN, at, opened, view_of

DANCE = Request(7, at(-1), "dance", "n1", "eve", "MUNGE")


def dance(
    request: Request, _view: PlanningView, _policy: RecoveryPolicy, _now: datetime
) -> tuple[bool, str, Sequence[Event]]:
    return True, f"{request.target} dances", [opened()]


def stumble(*_: object) -> NoReturn:
    raise ValueError("one foot too many")


def read_answer(events: Sequence[Event]) -> RequestTaken:
    (taken,) = [event for event in events if isinstance(event, RequestTaken)]
    return taken


def test_a_feature_answers_its_own_verb() -> None:
    first, taken = process_operator_request(DANCE, view_of(), OWN, at(0), answers={"dance": dance})
    assert first == opened()
    assert isinstance(taken, RequestTaken)
    assert (taken.ok, taken.answer, taken.by) == (True, "n1 dances", "eve")


def test_a_request_that_nothing_proves_is_refused() -> None:
    unproved = replace(DANCE, proof="")
    (taken,) = process_operator_request(unproved, view_of(), OWN, at(0), answers={"dance": dance})
    assert isinstance(taken, RequestTaken)
    assert not taken.ok
    assert taken.answer == "nothing proves that 'eve' asked: ask again while a daemon runs"


@pytest.mark.parametrize("by", ["eve", ""])
def test_a_request_that_breaks_its_answer_is_answered_and_ends_nothing(by: str) -> None:
    request = replace(DANCE, by=by)
    taken = read_answer(
        process_request_catching_errors(
            request, view_of(), OWN, at(0), {}, answers={"dance": stumble}
        )
    )
    assert (taken.request, taken.by, taken.ok) == (7, by or "operator", False)
    assert taken.answer.startswith("internal error: ValueError")
    fine = read_answer(
        process_request_catching_errors(DANCE, view_of(), OWN, at(0), {}, answers={"dance": dance})
    )
    assert fine.ok


@pytest.mark.parametrize(
    ("target", "ok", "words"),
    [
        ("n2", True, "the pause of"),
        ("n9", False, "is open; open: "),
        ("", True, "the pause is lifted"),
    ],
    ids=["a node of it", "another node", "all"],
)
def test_a_pause_is_lifted_by_one_of_its_nodes(target: str, ok: bool, words: str) -> None:
    paused = RequestTaken(at(-5), 1, "pause", "n[1-2]", "eve", "", True)
    detail = json.dumps({"nodes": target}) if target else ""
    request = Request(2, at(-1), "unpause", "", "eve", "MUNGE", detail)
    taken = read_answer(process_operator_request(request, view_of(log=[paused]), OWN, at(0)))
    assert taken.ok is ok, taken.answer
    assert words in taken.answer
