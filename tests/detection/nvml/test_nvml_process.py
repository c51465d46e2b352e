"""What the agent makes of the NVML child's words, good and bad, and the page of its calls."""

import os
import threading
import time
from collections.abc import Callable

import pytest

from hpctl.detection.nvml import client
from hpctl.detection.nvml.client import (
    LENGTH,
    Message,
    NvmlChildClosedError,
    NvmlChildProcess,
    NvmlEventMessage,
    NvmlSweepMessage,
)
from hpctl.detection.nvml.driver import EVENTS, SWEEP, DriverCallsInFlight
from hpctl.detection.nvml.snapshot import NvmlEvent
from tests.waiting import PATIENCE_S

SWEPT = b'{"kind":"sweep","snapshot":{"at":1.0},"done":3.0}'
EVENT = b'{"kind":"event","event":{"at":2.0,"pci":"0000:10:00.0","kind":8,"data":79}}'

Start = Callable[[bytes], NvmlChildProcess]


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a child that writes these bytes and ends."""
    children: list[NvmlChildProcess] = []

    def make(args: bytes) -> NvmlChildProcess:
        name = f"a_child_{len(children)}"
        (tmp_path / f"{name}.py").write_text(f"import os\nos.write(0, {args!r})\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(client, "MODULE", name)
        children.append(NvmlChildProcess(5.0, os.environ))
        return children[-1]

    yield make
    for child in children:
        assert child.wait(PATIENCE_S)
        child.forget()


def frame(text: bytes) -> bytes:
    return LENGTH.pack(len(text)) + text


def read(child: NvmlChildProcess) -> tuple[list[Message], str]:
    """All messages, and how it ended."""
    assert child.wait(PATIENCE_S)
    messages: list[Message] = []
    try:
        for message in child.messages():
            messages.append(message)
    except NvmlChildClosedError as closed:
        return messages, str(closed)
    return messages, ""


def test_messages_come_in_order_and_then_the_end(start: Start) -> None:
    messages, end = read(start(frame(EVENT) + frame(SWEPT)))
    assert messages[0] == NvmlEventMessage(NvmlEvent(2.0, "0000:10:00.0", 8, 79))
    assert isinstance(messages[1], NvmlSweepMessage)
    assert (messages[1].snapshot.at, messages[1].done, end) == (1.0, 3.0, "has ended")


@pytest.mark.parametrize(
    ("args", "end"),
    [
        (b"\xff\xff\xff\xffNVRM: ", "announced a message of 4294967295 bytes"),
        (frame(b"no JSON"), "sent no message"),
        (frame(b'{"kind":"other"}'), "sent no message"),
        (frame(SWEPT.replace(b"1.0", b'"now"')), "sent no message"),
    ],
)
def test_what_is_no_message_ends_the_child(start: Start, args: bytes, end: str) -> None:
    messages, ended = read(start(frame(EVENT) + args))
    assert len(messages) == 1
    assert ended.startswith(end)


@pytest.fixture
def page():
    page = DriverCallsInFlight.create()
    yield page
    page.close()


def test_the_page_is_shared_through_its_descriptor(page: DriverCallsInFlight) -> None:
    other = DriverCallsInFlight(os.dup(page.fd))
    assert page.oldest() is None
    other.begin(SWEEP, "nvmlInit")
    call = page.oldest()
    assert (call.name, call.thread) == ("nvmlInit", threading.get_native_id())
    assert call.since == pytest.approx(time.monotonic(), abs=1.0)
    other.end(SWEEP)
    assert page.oldest() is None
    other.close()


def test_a_call_that_is_meant_to_wait_is_late_only_afterwards(page: DriverCallsInFlight) -> None:
    page.begin(EVENTS, "nvmlEventSetWait", lasts_s=100.0)
    page.begin(SWEEP, "nvmlDeviceGetCount")
    assert page.oldest().name == "nvmlDeviceGetCount"
    page.end(SWEEP)
    assert page.oldest().since > time.monotonic() + 50
