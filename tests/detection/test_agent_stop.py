"""The agent ends within seconds, however many of its parts do not."""

import threading
import time

from hpctl.detection import service


class Part:
    """Something that takes so long to stop."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.free, self.ended = seconds, threading.Event(), False

    def stop(self) -> None:
        self.free.wait(self.seconds)
        self.ended = True


def test_parts_that_hang_are_left_after_one_time_for_all(monkeypatch, caplog) -> None:
    monkeypatch.setattr(service, "STOP_S", 0.5)
    parts = [Part(60.0) for _ in range(6)] + [Part(0.0)]
    began = time.monotonic()
    service.stop_agent_parts(parts)
    assert time.monotonic() - began < 5
    assert [part.ended for part in parts] == [False] * 6 + [True]
    assert "6 of the agent's parts did not end within 0.5 s" in caplog.text
    for part in parts:
        part.free.set()
