"""The page's server on loopback: who gets in, by which names and methods, what a stream says."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpctl.engine.config import WebPageSection
from hpctl.engine.journal.events import SignalSeen
from hpctl.service.intake import server
from hpctl.service.page import access
from hpctl.service.page.access import StatusPageAccess
from hpctl.vocabulary.identity import RecoveryId
from hpctl.wire.authentication import RequestRefusal
from tests.cli import worlds
from tests.service.page import site
from tests.service.page.test_views import MOVED
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    site.append(tmp_path, worlds.troubled())
    made = site.follower(tmp_path, monkeypatch, worlds.slurm(), health=[*worlds.health().values()])
    with site.served(made, site.holder()) as at:
        yield at


def test_only_the_token_s_holder_sees_pages(url: str) -> None:
    for path in ("/", "/jobs", "/history", "/explain/n-44444444", "/static/page.css"):
        assert site.get(url, path)[0] == 200
        for wrong in ("", "Bearer ", "Bearer x", "Basic eDp5", f"Bearer {site.TOKEN.decode()}x"):
            status, headers, text = site.get(url, path, authorization=wrong)
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert "hpctl page --link" in text
    assert site.get(url, "/explain/nobody")[0] == 404
    assert site.get(url, "/static/../app.py")[0] == 404


def test_every_answer_forbids_what_a_page_does_not_need(url: str) -> None:
    for path, headers in (("/", {}), ("/nothing", {}), ("/", {"authorization": ""})):
        _, found, _ = site.get(url, path, **headers)
        assert found["content-security-policy"].startswith("default-src 'none'; style-src 'self'")
        assert found["x-content-type-options"] == "nosniff"
        assert found["cache-control"] == "no-store"
        assert not [name for name in found if name.startswith("access-control")]
    text = site.get(url, "/")[2]
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_only_shows(url: str, method: str) -> None:
    status, headers, _ = site.get(url, "/", method=method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_a_host_name_that_is_not_its_own_is_refused(url: str) -> None:
    port = url.rpartition(":")[2]
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "",
        "localhost.evil.example",
        "[::1",
        "a b",
    ):
        assert site.get(url, "/", host=host)[0] in (400, 421), host
    mine = (f"localhost:{port}", "127.0.0.1", "[::1]:99", socket.gethostname().upper())
    assert {site.get(url, "/", host=host)[0] for host in mine} == {200}
    assert StatusPageAccess(None, ["Cluster.Example"]).is_allowed_host("cluster.example:443")


def test_a_link_lets_one_browser_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, other = site.holder(), StatusPageAccess(lambda: b"another token of somebody")
    code = ours.link()
    assert other.enter(code) is None
    session = ours.enter(code)
    assert session is not None
    assert ours.enter(code) is None
    assert ours.allows("", session)
    assert not ours.allows("", code)  # a link is no session
    assert ours.enter(session) is None
    assert not other.allows("", session)
    monkeypatch.setattr(access, "SESSION_S", -1)
    monkeypatch.setattr(access, "LINK_S", -1)
    assert not ours.allows("", session)
    assert ours.enter(ours.link()) is None


def test_the_link_s_browser_keeps_a_cookie_and_the_address_no_secret(url: str) -> None:
    status, headers, _ = site.get(url, f"/enter/{site.holder().link()}", authorization="")
    assert (status, headers["location"]) == (303, "/")
    assert {"HttpOnly", "SameSite=lax", "Path=/"} <= set(headers["set-cookie"].split("; "))
    cookie = headers["set-cookie"].partition(";")[0]
    assert site.get(url, "/", authorization="", cookie=cookie)[0] == 200
    assert site.get(url, "/", authorization="", cookie=cookie + "x")[0] == 401
    assert site.get(url, "/enter/1.2.3", authorization="")[0] == 401


@pytest.mark.parametrize(
    ("mode", "text", "says"),
    [
        (0o644, "x" * 32, "open to other users"),
        (0o600, "short", "16 characters"),
        (0, None, "read"),
    ],
)
def test_a_token_that_is_no_secret_is_refused_with_the_fix(tmp_path, mode, text, says):
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    with pytest.raises(RequestRefusal, match=says) as caught:
        StatusPageAccess.of(WebPageSection(listen="127.0.0.1:0", token_file=file))
    assert "page.token_file" in str(caught.value)
    assert text is None or str(file) in caught.value.hint


def test_a_stream_tells_what_changed_and_only_that(url: str, tmp_path: Path) -> None:
    told = site.events(url, "/")
    whole = json.loads(next(told))
    assert {"head", "healing", "n-ip-10-1-0-4"} <= set(whole)
    threading.Timer(
        0.2,
        site.append,
        (tmp_path, [SignalSeen(worlds.at(80), RecoveryId("n-44444444"), "needs_human", "no")]),
    ).start()
    begun = time.monotonic()
    news = json.loads(next(told))
    assert time.monotonic() - begun < PATIENCE_S / 2
    assert set(news) == MOVED
    assert "escalated" in site.get(url, "/explain/n-44444444")[2].lower()
    version = site.get(url, "/")[2].partition('data-version="')[2].partition('"')[0]
    later = site.events(url, "/", int(version))
    quiet = threading.Thread(target=lambda: next(later, None), daemon=True)
    quiet.start()
    quiet.join(1.5)
    assert quiet.is_alive()  # who has everything is sent nothing


def test_who_reads_too_slowly_or_never_asks_is_dropped(url, monkeypatch):
    monkeypatch.setattr(server, "REQUEST_S", 0.5)
    monkeypatch.setattr(server, "HEAD_S", 0.5)
    host, port = url.removeprefix("http://").split(":")
    with socket.socket() as slow, socket.create_connection((host, int(port))) as silent:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect((host, int(port)))
        ask = (
            f"GET / HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {site.TOKEN.decode()}\r\n\r\n"
        )
        slow.sendall(ask.encode())
        slow.settimeout(PATIENCE_S)
        silent.settimeout(PATIENCE_S)
        assert silent.recv(1) == b""
        time.sleep(1.0)
        came = 0
        with pytest.raises((ConnectionResetError, EOFError)):  # noqa: PT012
            while piece := slow.recv(4096):
                came += len(piece)
            raise EOFError
    assert site.get(url, "/")[0] == 200
    until(lambda: site.get(url, "/")[0] == 200)
