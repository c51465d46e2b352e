"""Datagrams of another user to a job's progress listener: a fact about nobody's run."""

import pytest

from hpctl.jobs.run.progress_notes import listen
from tests.adversary.bed import attack
from tests.jobs.run.progress_talk import heard, sender

pytestmark = [pytest.mark.integration, pytest.mark.adversary]

SHOTS = [
    b"step=99 loss=nan", b"token= step=99", b"token=00000000000000000000000000000000 step=99",
    b"done", b"\xff\xfe" * 400, b"step=" + b"9" * 4000, b'{"step":1e999}', b"",
]  # fmt: skip


@pytest.mark.parametrize("peers", [[], ["localhost"]], ids=["unix", "udp"])
def test_another_user_tells_nothing(peers: list[str]) -> None:
    """He cannot reach the socket of a run on one node, and lacks the secret of one on many."""
    with listen(peers) as listener, sender(listener.address) as send:
        # Whoever listens to the environment of nobody knows the address, and not the secret.
        known, _, token = listener.address.partition(",")
        came = attack("shots", address=known, words=[shot.hex() for shot in SHOTS * 20])
        assert set(came) == ({"sent"} if peers else {"PermissionError"})
        send(f"token={token} step=7".encode() if token else b"step=7")
        assert [note.step for note in heard(listener, 1)] == [7]
        assert listener.dropped == (len(came) if peers else 0)
