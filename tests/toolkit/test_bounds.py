"""The bounding module at the extremes of each type, and the terminal that it keeps clean."""

import io
import json
import math
from datetime import datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from hpctl.engine.journal.rows import decode_event
from hpctl.toolkit import output
from hpctl.toolkit.bounds import (
    EARLIEST,
    LATEST,
    MAX_COUNT,
    add_seconds_within_bounds,
    clamp_duration,
    convert_to_utc,
    escape_json_for_terminal,
    make_printable,
    parse_count,
    parse_slurm_time,
    parse_timestamp,
)
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.model import DeviceVerdict, Finding

FAR = (1e300, 1.7e308, math.inf, math.nan, -1e300, -math.inf, 0.0, 1e-300)


@given(st.datetimes(timezones=st.just(UTC)), st.sampled_from(FAR) | st.floats())
def test_time_arithmetic_is_total(at: datetime, seconds: float) -> None:
    assert EARLIEST <= add_seconds_within_bounds(at, seconds) <= LATEST
    assert isinstance(clamp_duration(seconds), timedelta)
    assert isinstance(parse_timestamp(seconds), datetime | None)


@given(st.datetimes(), st.integers(-14, 14))
def test_every_zone_of_every_time_is_utc(at: datetime, hours: int) -> None:
    zoned = at.replace(tzinfo=timezone(timedelta(hours=hours)))
    assert EARLIEST <= convert_to_utc(zoned) <= LATEST
    assert convert_to_utc(zoned).tzinfo is UTC


@given(st.text() | st.sampled_from(["\u00b2", "9" * 9999, "\u0663", "-1", " 1"]))
def test_a_text_is_a_number_or_it_is_not(text: str) -> None:
    assert 0 <= parse_count(text) <= MAX_COUNT
    assert isinstance(parse_slurm_time(text), datetime | None)


def test_no_wait_is_over_that_is_no_number() -> None:
    assert (
        add_seconds_within_bounds(datetime(2026, 1, 1, tzinfo=UTC), math.nan),
        parse_count("12"),
    ) == (LATEST, 12)
    assert parse_slurm_time("2026-01-31T12:00:00") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert parse_slurm_time("10000-01-03T23:00:00") == LATEST
    assert parse_timestamp(0) is None


def test_a_finding_of_the_year_one_that_is_stored_already_loads() -> None:
    from hpctl.engine.journal.rows import _findings

    stored = (
        b'[{"check":"kernel.xid","verdict":"fail","first":"0001-01-01T00:00:00Z",'
        b'"last":"9999-12-31T23:59:59Z"}]'
    )
    (finding,) = _findings.decode(stored)
    assert (finding.first, finding.last) == (EARLIEST, LATEST)
    assert (
        Finding("c", DeviceVerdict.OK, datetime.min.replace(tzinfo=UTC), LATEST).first == EARLIEST
    )
    payload = (
        '{"at":"2026-01-01T00:00:00Z","report":{"job":1,"restarts":0,"trouble":'
        '{"kind":"crash","at":"0001-01-01T00:00:00Z","why":""}}}'
    )
    reported = decode_event(1, "JobReported", payload)
    assert reported.report.trouble.at == EARLIEST


HOSTILE = "a\x1b[2Jb\x9b1mc\u202ed\x07e\x7f\u2028f"


@given(st.text() | st.just(HOSTILE))
def test_printable_leaves_nothing_that_a_terminal_obeys(text: str) -> None:
    clean = make_printable(text)
    assert not set(clean) & set(map(chr, [*range(32), *range(127, 160), 0x202E, 0x2028]))
    assert len(clean) == len(text)
    assert (make_printable(clean), make_printable("a\tb\n", lines=True)) == (clean, "a\tb\n")


@given(st.text() | st.just(HOSTILE))
def test_json_stays_the_same_document(text: str) -> None:
    safe = escape_json_for_terminal(json.dumps(text, ensure_ascii=False))
    assert (json.loads(safe), make_printable(safe, lines=True)) == (text, safe)


def test_what_users_wrote_reaches_no_terminal_uncleaned_and_colours_stay() -> None:
    terminal = io.StringIO()
    made = output._make_sanitizing_console_class()(
        file=terminal, force_terminal=True, color_system="standard"
    )
    made.print(Text(HOSTILE, "red"))
    made.print(HOSTILE, markup=False)
    assert "\x1b[31m" in terminal.getvalue()
    assert "\x1b[2J" not in terminal.getvalue()
