"""The page in the system's own Chromium, headless: what a person sees and does there."""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from hpctl.engine.journal.events import SignalSeen
from hpctl.vocabulary.identity import RecoveryId
from tests.cli import worlds
from tests.engine.journal.servers import program
from tests.service.page import site

pytestmark = pytest.mark.integration

PATHS = ("/", "/jobs", "/history", "/explain/n-44444444", "/explain/ip-10-1-0-5")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    as_root = ["--no-sandbox"] * (os.geteuid() == 0)
    with sync_playwright() as playwright:
        found = program("chromium", "chromium")
        started = playwright.chromium.launch(executable_path=found, args=as_root)
        yield started
        started.close()


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    some = (worlds.healed(), worlds.troubled(), worlds.changes())
    site.append(tmp_path, [event for events in some for event in events])
    slurm = worlds.slurm()
    made = site.follower(
        tmp_path, monkeypatch, slurm, health=[*worlds.health().values()],
        leaves={name: f"leaf-{n // 4}" for n, name in enumerate(slurm.nodes)},
    )  # fmt: skip
    with site.served(made, site.holder()) as at:
        yield at


class Seen:
    """A context that is signed in by a link, and all that went wrong in it."""

    def __init__(self, browser: Browser, url: str, **how: object) -> None:
        self.context: BrowserContext = browser.new_context(**how)  # type: ignore[arg-type]
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda said: self.wrong.append(f"{said.type}: {said.text}"))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "request",
            lambda asked: asked.url.startswith(url) or self.wrong.append(f"asked {asked.url}"),
        )
        self.page.goto(f"{url}/enter/{site.holder().link()}")

    def focused(self) -> str:
        name: str = self.page.evaluate(
            "document.activeElement.id || document.activeElement.innerText"
        )
        return name


def test_every_page_fits_a_phone_and_a_desk_and_asks_no_other_host(browser, url):
    for width, scheme, paths in ((390, "dark", PATHS), (1440, "light", PATHS[:1])):
        seen = Seen(browser, url, viewport={"width": width, "height": 900}, color_scheme=scheme)
        for path in paths:
            seen.page.goto(url + path)
            assert seen.page.evaluate("document.documentElement.scrollWidth") == width, path
        back = seen.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") is (scheme == "light")
        assert seen.wrong == []
        seen.context.close()


def test_the_keyboard_reaches_everything_and_one_cell_stands_for_the_map(browser, url):
    seen = Seen(browser, url)
    order = []
    for _ in range(40):
        seen.page.keyboard.press("Tab")
        order.append(seen.focused())
        if order[-1].startswith("n-ip"):
            break
    assert order[:4] == ["Skip to content", "Cluster", "Jobs", "History"]
    assert order.index("ip-10-1-0-6: GSP RPC timeout") < len(order) - 1
    assert order[-1].startswith("n-ip")
    seen.page.keyboard.press("End")
    assert seen.focused() == "n-ip-10-1-0-7"
    seen.page.keyboard.press("ArrowLeft")
    assert seen.focused() == "n-ip-10-1-0-6"
    seen.page.keyboard.press("Shift+Tab")
    seen.page.keyboard.press("Tab")
    assert seen.focused() == "n-ip-10-1-0-6"  # the map remembers the place
    seen.page.keyboard.press("Enter")
    seen.page.wait_for_url(f"{url}/explain/ip-10-1-0-6")
    assert "GSP RPC timeout" in seen.page.inner_text("#explain")
    assert seen.wrong == []
    seen.context.close()


def test_what_happens_is_seen_at_once_and_moves_neither_focus_nor_folds(browser, url, tmp_path):
    seen = Seen(browser, url)
    seen.page.get_by_text("Live", exact=True).wait_for()
    seen.page.click("summary >> nth=0")
    seen.page.focus("#n-ip-10-1-0-4")
    site.append(
        tmp_path, [SignalSeen(worlds.at(80), RecoveryId("n-44444444"), "needs_human", "no luck")]
    )
    seen.page.wait_for_selector("#n-ip-10-1-0-4.person", timeout=5000)
    assert seen.focused() == "n-ip-10-1-0-4"
    assert not seen.page.evaluate("document.querySelector('details').open")
    assert seen.page.locator("#card-n-44444444").count() == 0
    assert "GPU has fallen" in seen.page.inner_text("#do-n-44444444 h3")
    assert float(seen.page.evaluate("document.body.dataset.took")) < 1000
    assert seen.wrong == []
    seen.context.close()


CONTRASTS = """() => {
    const parts = (color) => color.match(/[\\d.]+/g).map(Number);
    const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
        .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, n) => sum + c * [0.2126, 0.7152, 0.0722][n], 0);
    const behind = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const back = parts(getComputedStyle(one).backgroundColor);
            if (back.length < 4 || back[3] > 0) return back;
        }
        return [255, 255, 255];
    };
    const weak = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!own || element.closest("svg") || !element.checkVisibility()) continue;
        const [a, b] = [light(parts(getComputedStyle(element).color)), light(behind(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (ratio < 4.5) weak.push(`${element.className} ${element.innerText} ${ratio}`);
    }
    return weak;
}"""
LEVELS = "[...document.querySelectorAll('h1, h2, h3')].filter(h => h.checkVisibility())"


def test_text_stands_out_and_landmarks_have_names_and_headings_an_order(browser, url):
    for scheme in ("dark", "light"):
        seen = Seen(browser, url, color_scheme=scheme)
        for path in PATHS:
            seen.page.goto(url + path)
            assert seen.page.evaluate(CONTRASTS) == [], (path, scheme)
            assert seen.page.locator("main").count() == 1
            levels = seen.page.evaluate(f"{LEVELS}.map(h => Number(h.tagName[1]))")
            assert levels[0] == 1
            assert all(b - a <= 1 for a, b in pairwise(levels)), levels
            names = seen.page.evaluate(
                "[...document.querySelectorAll('nav, section')].map(one => one.ariaLabel"
                " || document.getElementById(one.getAttribute('aria-labelledby'))?.innerText)"
            )
            assert all(names), (path, names)
        seen.context.close()


def test_nothing_moves_where_a_reader_wants_no_motion(browser, url, tmp_path):
    seen = Seen(browser, url, reduced_motion="reduce")
    seen.page.get_by_text("Live", exact=True).wait_for()
    site.append(
        tmp_path, [SignalSeen(worlds.at(80), RecoveryId("n-44444444"), "needs_human", "no luck")]
    )
    seen.page.wait_for_selector("#n-ip-10-1-0-4.person.fresh", timeout=60_000)
    assert seen.page.evaluate("document.getAnimations().length") == 0
    seen.context.close()


def test_what_is_old_is_called_old(browser, url):
    seen = Seen(browser, url)
    seen.page.get_by_text("Live", exact=True).wait_for()
    assert seen.page.locator("#old").is_hidden()
    seen.context.set_offline(True)
    seen.page.wait_for_selector("#old", timeout=120_000)
    said = seen.page.inner_text("#old")
    assert "This is old: it shows 2026-11-21 12:01 UTC, 1 min ago." in said
    assert "not connected" in said
    seen.context.set_offline(False)
    seen.page.wait_for_selector("#old", state="hidden", timeout=60_000)
    seen.context.close()


def test_a_card_is_reached_by_its_link_and_keeps_its_fold(browser, url, tmp_path):
    seen = Seen(browser, url)
    seen.page.goto(f"{url}/#card-j-55555555")
    seen.page.get_by_text("Live", exact=True).wait_for()
    assert seen.page.evaluate("document.querySelector(':target').id") == "card-j-55555555"
    fold = seen.page.locator("#card-j-55555555 details")
    fold.locator("summary").click()
    assert not fold.evaluate("one => one.open")
    moved = SignalSeen(worlds.at(81), RecoveryId("j-77777777"), "running_seen", "runs again")
    site.append(tmp_path, [moved])
    seen.page.wait_for_selector("#card-j-77777777:has-text('proving')", timeout=60_000)
    assert not fold.evaluate("one => one.open")
    seen.context.close()


def test_it_reads_without_scripts(browser: Browser, url: str) -> None:
    seen = Seen(browser, url, java_script_enabled=False)
    assert "GPU has fallen off the bus" in seen.page.inner_text("#healing")
    assert "hpctl undrain ip-10-1-0-6" in seen.page.inner_text("#person")
    assert seen.page.locator("#old").is_hidden()
    assert seen.page.locator("a.cell").count() == 8
    seen.page.click("#n-ip-10-1-0-5")
    assert "held by budget" in seen.page.inner_text("#explain")
    assert seen.wrong == []
    seen.context.close()
