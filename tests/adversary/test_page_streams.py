"""A reader of the page that opens streams and answers without end, beside the other readers."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.cli import worlds
from tests.service.page import site
from tests.waiting import PATIENCE_S

pytestmark = [pytest.mark.integration, pytest.mark.adversary]

MANY = 200
ADDRESSES = 300
"""More than the page has connections."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    site.append(tmp_path, worlds.troubled())
    made = site.follower(tmp_path, monkeypatch, worlds.slurm(), health=[*worlds.health().values()])
    with site.served(made, site.holder()) as at:
        yield at


@pytest.mark.parametrize("path", ["/live?path=/", "/live?path=/explain/{}"])
def test_a_reader_that_opens_streams_and_reads_none_keeps_no_other_out(url, path):
    host, port = url.removeprefix("http://").split(":")
    with ExitStack() as held:
        lines: list[socket.socket] = []
        for number in range(MANY):
            line = held.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            line.settimeout(PATIENCE_S)
            line.connect((host, int(port)))
            ask = f"GET {path.format(number)} HTTP/1.1\r\nhost: {host}\r\n"
            line.sendall(f"{ask}authorization: Bearer {site.TOKEN.decode()}\r\n\r\n".encode())
            lines.append(line)
            if number % 20 == 19:
                assert site.get(url, "/")[0] == 200
        assert next(site.events(url, "/"))
        with suppress(ConnectionResetError):
            while lines[0].recv(65536):
                pass  # the oldest goes; until then it has what it had asked for


def test_one_slow_stream_from_each_of_many_addresses_keeps_no_other_out(url):
    host, port = url.removeprefix("http://").split(":")
    ask = f"GET /live?path=/ HTTP/1.1\r\nhost: {host}\r\n"
    ask += f"authorization: Bearer {site.TOKEN.decode()}\r\n\r\n"
    with ExitStack() as held:
        for number in range(ADDRESSES):
            line = held.enter_context(socket.socket())
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            line.settimeout(PATIENCE_S)
            line.bind((f"127.0.{5 + number // 200}.{number % 200 + 1}", 0))
            line.connect((host, int(port)))
            line.sendall(ask.encode())
            assert line.recv(1), "it is being answered"
        assert site.get(url, "/")[0] == 200
        assert next(site.events(url, "/"))
