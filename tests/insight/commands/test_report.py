"""`hpctl report`: text, JSON and a page that loads nothing and escapes everything."""

import json
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.change import ChangeKind, ChangeOpened
from hpctl.vocabulary.demand import Tres
from hpctl.vocabulary.identity import RecoveryId, RuleId
from tests.cli import worlds
from tests.cli.test_json_contract import holds
from tests.fakes.command_line import Head

pytestmark = pytest.mark.integration

EVIL = "<script>alert(1)</script>\x1b[2J"


@pytest.fixture
def fleet(history: Head) -> Head:
    assert history.slurm is not None
    nodes = {
        n: replace(node, has=Tres(gres=(("gpu", 8),))) for n, node in history.slurm.nodes.items()
    }
    history.slurm = replace(history.slurm, nodes=nodes)
    return history


def test_without_prices_there_is_no_money_and_with_them_there_is(fleet: Head) -> None:
    plain = fleet.run("report", "--since", "1h", width=200).stdout
    assert "8 nodes, 64 GPUs, 0.3 node-days" in plain
    assert "failures      4, 12000.00 per 1,000 node-days" in plain
    assert "faults held   1, not treated: budget 1" in plain
    assert "EUR" not in plain + fleet.run("report", "--json").stdout
    prices = fleet.dir / "prices.yaml"
    prices.write_text("currency: EUR\ngpu_hour: 3600\npartitions: {gpu: 1800}\n")
    # Out of service until 12:01:30: node 2 for 53.49 s, 4 for 29.8, 6 for 49.8, each of 8 GPUs.
    text = fleet.run("report", "--since", "1h", "--prices", str(prices), width=200).stdout
    assert "out of service for 0.3 GPU-hours (532.36 EUR)" in text
    view = json.loads(fleet.run("report", "--prices", str(prices), "--json").stdout)
    assert view["report"]["out"]["cost"] == pytest.approx(532.36)


def test_the_page_is_one_file_that_loads_nothing_and_is_well_formed(fleet: Head) -> None:
    assert fleet.slurm is not None
    rule = RuleId(f"report-{EVIL}")
    twice = [
        worlds.node_opened("n-8", worlds.gen(7), 78, rule=rule, findings=()),
        worlds.seen("n-8", "operator_took_over", 79, EVIL),
        worlds.node_opened("n-9", worlds.gen(7), 80, rule=rule, findings=()),
        worlds.seen("n-9", "cordon_seen", 81, EVIL),
    ]
    spares = ChangeOpened(worlds.at(81), RecoveryId("s-9"), ChangeKind.SPARES, EVIL, EVIL)
    fleet.write([*twice, spares, worlds.seen("s-9", "set_seen", 82, "")])
    holds("report", fleet.run("report", "--json").stdout)
    path = fleet.dir / "report.html"
    result = fleet.run("report", "--since", "1h", "--html", str(path))
    assert (result.exit_code, result.stdout) == (0, "")
    page = path.read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "\x1b" not in page
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page
    found = Tags()
    found.feed(page)
    assert found.open == ["html", "meta", "meta", "meta"]
    assert not found.loads
    assert found.count["rect"] > 8
    for words in ("Meta RSC-1", "Time to repair", "What this assumes", "1 d after its drain"):
        assert words in page


class Tags(HTMLParser):
    """What is left open, and whatever would make a browser ask for something."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[tuple[str, str]] = []
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.open.append(tag)
        self.loads += [(tag, name) for name, _ in attrs if name in ("src", "href", "action")]

    def handle_endtag(self, tag: str) -> None:
        if tag == "html":
            return
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1


@pytest.mark.parametrize(
    ("text", "says"),
    [("gpu_hour: many\n", "a number"), ("gpu_hour: -1\n", "0"), ("gpu_hours: 1\n", "gpu_hour"),
     ("[1", "prices.yaml")],
)  # fmt: skip
def test_a_wrong_price_list_is_named(fleet: Head, text: str, says: str) -> None:
    path = fleet.dir / "prices.yaml"
    path.write_text(text)
    error = fleet.run("report", "--prices", str(path)).exception
    assert isinstance(error, HpctlError)
    assert says in f"{error} {error.hint}"
