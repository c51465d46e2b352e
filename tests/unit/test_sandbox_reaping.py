"""The supervisor collects zombies beside threads that wait for children of their own."""

from __future__ import annotations

import os
import subprocess
import time

import pytest

from hpctl.sandbox import supervisor
from hpctl.sandbox.proctree import zombie_children


def ended() -> subprocess.Popen[bytes]:
    child = subprocess.Popen(["true"])
    limit = time.monotonic() + 10
    while child.pid not in zombie_children(os.getpid()):
        assert time.monotonic() < limit
        time.sleep(0.01)
    return child


def test_one_that_somebody_else_collects_first_ends_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = ended()
    child.wait()
    monkeypatch.setattr(supervisor, "zombie_children", lambda parent: [child.pid])
    supervisor.reap_adopted()


def test_strangers_are_collected_and_our_own_are_left_to_their_popen() -> None:
    stranger, ours = ended(), ended()
    supervisor.reap_adopted([ours.pid])
    assert zombie_children(os.getpid()).count(ours.pid) == 1
    assert stranger.pid not in zombie_children(os.getpid())
    assert ours.wait() == 0
    stranger.wait()
