"""The one place that bounds what others wrote: times, durations, counts, text.

Users, nodes, Slurm and the cloud may send any value of a type: year 1, year 10000, 1e308 seconds,
numbers of a thousand digits, escape sequences. What has passed through here is within bounds in
which the core's arithmetic cannot overflow, and total: out of bounds becomes the nearest bound.
"""

import re
from datetime import datetime, timedelta
from typing import Any, Final

from hpctl.toolkit.compat import UTC

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""A thousand years of room: a time in bounds and a few durations in bounds add up to a datetime."""
MAX_SECONDS: Final = 10 * 366 * 86400.0
"""Ten years: the longest duration that a policy, a job or a report may name."""
MAX_COUNT: Final = 2**53
"""What JSON, floats and every database hold exactly."""

_DIGITS: Final = 16
_TIME = re.compile(r"([0-9]{4,6})(?:-[0-9]{2}){2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")
_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|m|h|d|w|)")
_UNIT_S: Final = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 604800}
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_BUT_LINES = re.compile(_UNPRINTABLE.pattern.replace("\x00-\x1f", "\x00-\x08\x0b-\x1f"))


def clamp_time(at: datetime) -> datetime:
    """Return an aware time, or the bound that is nearest to it."""
    return EARLIEST if at < EARLIEST else LATEST if at > LATEST else at


def convert_to_utc(at: datetime) -> datetime:
    """Return an aware time of any zone as one in UTC and in bounds; one without a zone is taken as
    UTC."""
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    at = clamp_time(at)
    return at if at.tzinfo is UTC else at.astimezone(UTC)


def clamp_time_fields(value: object, *names: str) -> None:
    """Bring these times of a frozen value in bounds; for its `__post_init__`."""
    for name in names:
        at: datetime = getattr(value, name)
        if not EARLIEST <= at <= LATEST:
            _set_frozen_field(value, name, convert_to_utc(at))


def make_text_fields_printable(value: object, *names: str) -> None:
    """Make these texts of a frozen value printable; for its `__post_init__`."""
    for name in names:
        text: str = getattr(value, name)
        if _BUT_LINES.search(text):
            _set_frozen_field(value, name, make_printable(text, lines=True))


def _set_frozen_field(value: Any, name: str, to: object) -> None:
    # A prolog's program bounds numbers too, and is not to pay for the import.
    from msgspec.structs import force_setattr

    force_setattr(value, name, to)


def add_seconds_within_bounds(at: datetime, seconds: float) -> datetime:
    """`at` plus seconds, in bounds. What is no number of seconds is never over."""
    try:
        return clamp_time(at + timedelta(seconds=seconds))
    except (OverflowError, ValueError):
        return EARLIEST if seconds < 0 else LATEST


def clamp_duration(seconds: float) -> timedelta:
    """Return a duration of at most MAX_SECONDS either way; what is no number is the longest."""
    within = max(-MAX_SECONDS, min(seconds, MAX_SECONDS))
    return timedelta(seconds=within if seconds == seconds else MAX_SECONDS)


def parse_duration(text: str) -> float | None:
    """`90`, `90s`, `10m`, `30min`, `1.5h`, `1d`, `2w` in seconds; None for anything else.

    How people write a duration, in files and on the command line. It may be out of bounds, which
    the caller refuses with the bound that it has.
    """
    match = _DURATION.fullmatch(text.strip())
    return float(match[1]) * _UNIT_S[match[2]] if match else None


def parse_timestamp(seconds: float | None) -> datetime | None:
    """Return a POSIX time in bounds; None for 0, for less, and for what is no number."""
    if seconds is None or not seconds > 0:
        return None
    return datetime.fromtimestamp(seconds, UTC) if seconds < LATEST.timestamp() else LATEST


def parse_slurm_time(text: str) -> datetime | None:
    """Return a time in UTC as Slurm prints it, in bounds: `2026-01-31T12:00:00`, and
    `10000-01-03T...`.

    None for every other text (`Unknown`, `N/A`, `NONE`).
    """
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    if len(found[1]) > 4:
        return LATEST
    try:
        return clamp_time(datetime.fromisoformat(text).replace(tzinfo=UTC))
    except ValueError:
        return None


def parse_count(text: str, otherwise: int = 0) -> int:
    """The number that a text of ASCII digits is, at most MAX_COUNT; `otherwise` for another."""
    if not (text.isascii() and text.isdigit()):
        return otherwise
    return min(int(text), MAX_COUNT) if len(text) <= _DIGITS else MAX_COUNT


def make_printable(text: str, *, lines: bool = False) -> str:
    """Return a text without what a terminal obeys and does not show: C0, C1, bidi and format
    controls, halves of surrogate pairs. Each becomes U+FFFD; with `lines`, newlines and tabs stay.
    """
    return (_BUT_LINES if lines else _UNPRINTABLE).sub("\ufffd", text)


def escape_json_for_terminal(text: str) -> str:
    """JSON whose strings hold nothing that a terminal obeys: the same document, in escapes."""
    return _BUT_LINES.sub(lambda found: _escape_code_point(ord(found[0])), text)


def _escape_code_point(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    return f"\\u{0xD800 + (code - 0x10000 >> 10):04x}\\u{0xDC00 + (code & 0x3FF):04x}"
