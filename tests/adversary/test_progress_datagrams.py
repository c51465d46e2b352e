"""Datagrams of another user to a job's progress listener: a fact about nobody's run."""

import time

import pytest

from hpctl.jobs.run.progress_notes import open_progress_note_listener
from tests.adversary.bed import attack, begin
from tests.jobs.run.progress_talk import heard, sender

pytestmark = [pytest.mark.integration, pytest.mark.adversary]

SHOTS = [
    b"step=99 loss=nan", b"token= step=99", b"token=00000000000000000000000000000000 step=99",
    b"done", b"\xff\xfe" * 400, b"step=" + b"9" * 4000, b'{"step":1e999}', b"",
]  # fmt: skip


@pytest.mark.parametrize("peers", [[], ["localhost"]], ids=["unix", "udp"])
def test_another_user_tells_nothing(peers: list[str]) -> None:
    """He cannot reach the socket of a run on one node, and lacks the secret of one on many."""
    with open_progress_note_listener(peers) as listener, sender(listener.address) as send:
        # Whoever listens to the environment of nobody knows the address, and not the secret.
        known, _, token = listener.address.partition(",")
        came = attack("shots", address=known, words=[shot.hex() for shot in SHOTS * 20])
        assert set(came) == ({"sent"} if peers else {"PermissionError"})
        send(f"token={token} step=7".encode() if token else b"step=7")
        assert [note.step for note in heard(listener, 1)] == [7]
        assert listener.dropped == 0  # the kernel passes none of them on


def test_half_of_the_secret_is_not_the_secret() -> None:
    with open_progress_note_listener(["localhost"]) as listener, sender(listener.address) as send:
        token = listener.address.partition(",")[2]
        other = token[:16] + token[16:].translate(
            str.maketrans("0123456789abcdef", "123456789abcdef0")
        )
        send(f"token={other} step=99".encode())
        send(f"token={token} step=7".encode())
        assert [note.step for note in heard(listener, 1)] == [7]
        assert listener.dropped == 1


def test_a_flood_of_datagrams_takes_no_room_from_the_ranks() -> None:
    """What fills the socket would make the run look as if it hung."""
    notes = 100
    with open_progress_note_listener(["localhost"]) as listener, sender(listener.address) as send:
        address, _, token = listener.address.partition(",")
        floods = [begin("flood_datagrams", address=address, seconds=6.0) for _ in range(3)]
        for flood in floods:
            flood.ready()
        for step in range(notes):
            send(f"token={token} step={step}".encode())
            time.sleep(0.02)
        assert [note.step for note in heard(listener, notes)] == list(range(notes))
        assert min(flood.result() for flood in floods) > 10_000
