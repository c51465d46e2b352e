"""What an agent finds out by itself, and how it talks to systemd."""

import subprocess
import sys
from pathlib import Path

import pytest

from hpctl.agent import config
from hpctl.core.model import NodeName
from hpctl.errors import HpctlError
from hpctl.protocol.heads import DEFAULT_PORT, Head

NODE = NodeName("n1")


@pytest.mark.parametrize(
    ("url", "head"),
    [
        ("http://head:9000", Head("head", 9000)),
        ("http://head", Head("head", DEFAULT_PORT)),
        ("10.0.0.1:8470/", Head("10.0.0.1", 8470)),
        ("http://[::1]:80", Head("::1", 80)),
    ],
)
def test_a_heads_url(url: str, head: Head) -> None:
    assert Head.parse(url) == head


@pytest.mark.parametrize("url", ["https://head:1", "http://head/x", "http://", "http://h:x", ""])
def test_what_is_no_heads_url(url: str) -> None:
    with pytest.raises(HpctlError, match="URL"):
        Head.parse(url)


@pytest.mark.parametrize(
    ("tag", "instance"),
    [("i-0123456789abcdef0\n", "i-0123456789abcdef0"), ("Not Specified\n", "n1"), (None, "n1")],
)
def test_the_instance_id_is_the_firmwares(tmp_path: Path, tag: str | None, instance: str) -> None:
    path = tmp_path / "board_asset_tag"
    if tag is not None:
        path.write_text(tag)
    assert config.this_instance(NODE, path) == instance


def test_the_boot_id(tmp_path: Path) -> None:
    assert config.this_boot() == config.BOOT_ID_FILE.read_text().strip()
    (tmp_path / "empty").write_text("\n")
    for path in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(HpctlError, match="boot id"):
            config.this_boot(path)


def test_the_agent_stays_away_from_what_is_heavy() -> None:
    heavy = ("pydantic", "sqlalchemy", "boto3", "rich", "starlette", "uvicorn", "asyncio", "yaml")
    program = (
        "import sys, hpctl.cli.agent, hpctl.agent.service\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "[]"
