"""What stands in for Python 3.11 does as 3.11 does; run under 3.10 too (tests/architecture)."""

import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from hpctl.toolkit.compat import SAFE_PATH, UTC, parse_iso_time
from tests.process import run_text

NOON = datetime(2026, 3, 1, 12, 30, 15)  # noqa: DTZ001
INDIA = timezone(timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("2026-03-01T12:30:15", NOON),
        ("2026-03-01 12:30:15", NOON),
        ("20260301T123015", NOON),
        ("2026-03-01T12:30:15Z", NOON.replace(tzinfo=UTC)),
        ("2026-03-01T12:30:15.5Z", NOON.replace(microsecond=500000, tzinfo=UTC)),
        ("2026-03-01T12:30:15,123456789Z", NOON.replace(microsecond=123456, tzinfo=UTC)),
        ("2026-03-01T12:30:15.000001+05:30", NOON.replace(microsecond=1, tzinfo=INDIA)),
        ("2026-03-01T12:30:15+0530", NOON.replace(tzinfo=INDIA)),
        ("2026-03-01T12:30:15+00", NOON.replace(tzinfo=UTC)),
        ("2026-03-01T12:30", NOON.replace(second=0)),
        ("2026-03-01T12", NOON.replace(minute=0, second=0)),
        ("2026-03-01", NOON.replace(hour=0, minute=0, second=0)),
    ],
)
def test_a_time_is_read_as_3_11_reads_it(text: str, meant: datetime) -> None:
    assert (parse_iso_time(text), parse_iso_time(text).tzinfo) == (meant, meant.tzinfo)
    if sys.version_info >= (3, 11):
        assert datetime.fromisoformat(text) == meant


@pytest.mark.parametrize(
    "text",
    ["", "now", "2026", "2026-03", "2026-13-01", "2026-03-01T25:00", "2026-03-01T12:30:15.Z",
     "2026-03-01T12:30:15ZZ", "2026-03-01T12:30:15 Z", "2026-03-01T12:30:15+99:00",
     "٢٠٢٦-03-01", "2026-03-01T12:30:15\n"],
)  # fmt: skip
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_iso_time(text)


def test_a_module_is_run_with_nothing_from_the_current_directory(tmp_path) -> None:
    for module in ("json", "runpy", "pkgutil"):
        (tmp_path / f"{module}.py").write_text("raise SystemExit('not this one')\n")
    args = [sys.executable, *SAFE_PATH, "json.tool", "--compact"]
    done = run_text(args, cwd=tmp_path, input='{"a": 1}')
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, '{"a":1}', "")


def test_the_plugin_for_slurm_runs_python_alike() -> None:
    source = Path(__file__).parents[2] / "slurm_plugins/hpctl_spank.c"
    assert SAFE_PATH[1] in source.read_text().replace('"' + " " * 29 + "\\\n\t" + '"', "")
