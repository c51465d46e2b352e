"""A log file that grows, and the rules over it: lines and times in, verdicts out.

A log may be rotated, truncated, copied and truncated, or not there yet. Reads are by position, so
that a file is never read twice, and bounded, so that memory is too. The bytes are cut into whole
lines. A carriage return ends a line too: a progress bar rewrites its line a thousand times before
the newline comes. NUL bytes are dropped: a log truncated under a writer that does not append has a
hole of them before the next line.

The rules' engine has no clock: the same input gives the same verdicts. The caller keeps two
promises: `feed` gets whole lines in their order, and `look(at)` is called only when everything that
was written up to `at` has been fed. So a reader that is behind never takes its own slowness for a
hang. A judge of one rule answers True for a bad data point, False for a good one and None for one
that says nothing (the text is no number). Counting consecutive bad ones is `Watch`'s business.

`replay_log_file` runs a finished log through it, by the times that the log's own lines carry.
"""

import math
import operator
import os
import stat
from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from statistics import median

from msgspec import Struct

from hpctl.jobs.logs.patterns import LogLinePattern, LogPatternMatch
from hpctl.jobs.logs.rules import LogRule, LogRuleSet
from hpctl.toolkit.compat import UTC, parse_iso_time
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable

LONGEST_LINE = 1 << 20
"""Bytes of a line that are kept; the rest of a longer one is ignored."""


class LineSplitter:
    """A cutter of lines that keeps the unfinished one at the end, at most LONGEST bytes of it."""

    __slots__ = ("_carry", "_dropping", "_returned")

    def __init__(self) -> None:
        self._carry = b""
        self._dropping = False
        self._returned = False

    def cut(self, data: bytes) -> bytes:
        """Return the lines that `data` completes, each ended by a newline."""
        if b"\0" in data:
            data = data.replace(b"\0", b"")
        if self._returned and data:
            data = data.removeprefix(b"\n")  # the second half of a \r\n that a read cut in two
            self._returned = False
        if b"\r" in data:
            self._returned = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        whole, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._keep_unfinished_line(rest)
            return b""
        if self._dropping or self._carry:
            first, _, others = (whole + newline).partition(b"\n")
            self._keep_unfinished_line(first)
            whole = self._carry + b"\n" + others
            self._carry, self._dropping = b"", False
        else:
            whole += newline
        self._keep_unfinished_line(rest)
        return whole

    def finish(self) -> bytes:
        """Return the unfinished line, for a file that has ended; empty where there is none."""
        last, self._carry, self._dropping = self._carry, b"", False
        return last + b"\n" if last else b""

    def forget(self) -> None:
        """Drop the unfinished line: the file was cut short, and its end will never come."""
        self._carry, self._dropping = b"", False

    def _keep_unfinished_line(self, part: bytes) -> None:
        if self._dropping:
            return
        self._carry += part
        if len(self._carry) > LONGEST_LINE:
            self._carry, self._dropping = self._carry[:LONGEST_LINE], True


BLOCK = 1 << 20
"""Bytes that one read takes at most: also what LineSplitter's bound on a line rests on."""
REMEMBERED = 64
"""Bytes before the position that are compared, to see a file cut short and grown again."""


class NotALogFileError(HpctlError):
    """The path is a directory, a FIFO or a device: following it could block or never end."""


class LogFollower:
    """The reader of one path, whichever file is there. Not safe for several threads.

    What it cannot see: lines that were written and rotated away, twice, between two reads; and a
    truncated file that grew again to the very same last bytes at the same place.
    """

    def __init__(self, path: Path, *, at_end: bool = False) -> None:
        """Open the log. `at_end` skips what is there already at the first read."""
        self.path = path
        self._at_end = at_end
        self._fd = -1
        self._position = 0
        self._tail = b""
        self._lines = LineSplitter()

    def read(self) -> tuple[bytes, bool]:
        """Return the whole lines that are new, and whether that was all that the file holds by now.

        Raises Unavailable where the file cannot be read, NotALogFileError where it is none. A file
        that is not there gives nothing: it may yet come, and what was open is read to its end.
        """
        try:
            return self._read_new_log_lines()
        except OSError as error:
            self.close()
            message = f"cannot read the job log {self.path}: {error.strerror or error}"
            raise ServiceUnavailable(
                message,
                "check that its file system is mounted and that this user may read the file",
            ) from (error)

    def finish(self) -> bytes:
        """Return the unfinished last line, once the writer has ended."""
        return self._lines.finish()

    def close(self) -> None:
        """Let go of the file; the next read opens it again where it was."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_new_log_lines(self) -> tuple[bytes, bool]:
        if self._fd < 0 and not self._open_log_file():
            return b"", True
        if self._is_log_file_truncated():
            self._reset_to_log_file_start()
        # Asked before the bytes are taken: a file system that fails here must not lose them.
        replaced = self._has_log_file_been_replaced()
        data = os.pread(self._fd, BLOCK, self._position)
        self._position += len(data)
        self._tail = (self._tail + data[-REMEMBERED:])[-REMEMBERED:]
        if len(data) == BLOCK:
            return self._lines.cut(data), False
        if replaced:
            if data:
                # More may have been written between this read and the rotation.
                return self._lines.cut(data), False
            # The last line may lack its newline, and will never get it.
            lines = self._lines.finish()
            self.close()
            self._reset_to_log_file_start()
            return lines, False
        return self._lines.cut(data), True

    def _open_log_file(self) -> bool:
        try:
            # A FIFO without a writer would block the open.
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            self._at_end = False
            return False
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            os.close(fd)
            raise NotALogFileError(
                f"cannot read the job log {self.path}: it is not a regular file",
                "name the log file that the job writes",
            )
        self._fd = fd
        if self._at_end:
            self._position, self._at_end = found.st_size, False
            begin = max(0, self._position - REMEMBERED)
            self._tail = os.pread(fd, self._position - begin, begin)
        return True

    def _is_log_file_truncated(self) -> bool:
        size = len(self._tail)
        if not size:
            return False
        return os.pread(self._fd, size, self._position - size) != self._tail

    def _has_log_file_been_replaced(self) -> bool:
        """Return whether another file is at the path. None: it is in the middle of a rotation."""
        try:
            there = os.stat(self.path)
        except FileNotFoundError:
            return False
        mine = os.fstat(self._fd)
        return (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino)

    def _reset_to_log_file_start(self) -> None:
        self._position, self._tail = 0, b""
        self._lines.forget()


COMPARE: dict[str, Callable[[float, float], bool]] = {
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "eq": operator.eq,
}
STEP_TO_SIGMA = 1.4826 / math.sqrt(2)
"""Scales the median absolute step between neighbours to the standard deviation of normal noise."""
LONGEST_NUMBER = 64
_AROUND = b" \t,;:'\"()[]{}|%"

Judge = Callable[[float | None], bool | None]


def parse_captured_number(text: bytes | None) -> float | None:
    """Return a captured number: `1,234.5`, `1.2E+00`, `nan`, `-inf`, `tensor(nan)`; None for
    others."""
    if text is None or len(text) > LONGEST_NUMBER:
        return None
    bare = text.strip(_AROUND).removeprefix(b"tensor(").replace(b",", b"")
    if b"_" in bare:
        return None
    try:
        return float(bare)
    except ValueError:
        return None


class MedianOutlierBaseline:
    """Median and noise of a rule's own recent good points; answers whether a point is bad.

    Bad: beyond the median by more than `sigmas` robust standard deviations and by more than
    `fraction` of it, so that a run which hardly varies does not alarm at a trifle. The deviation
    is the median absolute one of steps between neighbours and not of the points themselves: a
    loss falls fast at first, and its fall would count as noise that hides a spike. Bad points are
    kept out, or the baseline would follow the spike; but after a whole window of nothing else
    they are the new normal, and it is learned afresh.
    """

    def __init__(self, rule: LogRule) -> None:
        self._rule = rule
        self._sign = 1.0 if rule.is_higher_worse else -1.0
        self._clear_baseline_values()

    def _clear_baseline_values(self) -> None:
        self._order: deque[float] = deque()
        self._sorted: list[float] = []
        self._steps: deque[float] = deque(maxlen=self._rule.window)
        self._limit: float | None = None
        self._new = self._outside = 0

    def __call__(self, value: float | None) -> bool | None:
        """Judge a point and learn from it. NaN and Inf are the kind nan's business: None."""
        if value is None or not math.isfinite(value):
            return None
        if self._new or self._limit is None:
            self._update_outlier_limit()
        if self._limit is not None and self._sign * value > self._limit:
            self._outside += 1
            if self._outside >= self._rule.window:
                self._clear_baseline_values()
            return True
        self._outside = 0
        self._add_baseline_value(value)
        return False

    def _add_baseline_value(self, value: float) -> None:
        if self._order:
            self._steps.append(abs(value - self._order[-1]))
        self._order.append(value)
        insort(self._sorted, value)
        if len(self._order) > self._rule.window:
            del self._sorted[bisect_left(self._sorted, self._order.popleft())]
        self._new += 1

    def _update_outlier_limit(self) -> None:
        """Work the limit out again: at first each time, later once an eighth of it is new."""
        size = len(self._order)
        if size < self._rule.minimum:
            return
        if self._limit is not None and self._new < self._rule.window // 8:
            return
        middle = median(self._sorted)
        noise = STEP_TO_SIGMA * median(self._steps)
        margin = max(self._rule.sigmas * noise, self._rule.fraction * abs(middle))
        self._limit = self._sign * middle + margin
        self._new = 0


def make_log_rule_evaluator(rule: LogRule) -> Judge:
    """Return the judge that a rule asks for, with its own memory."""
    kind = rule.judges
    if kind in ("spike", "slow"):
        return MedianOutlierBaseline(rule)
    if kind == "nan":
        return (
            _is_value_not_finite
            if LogLinePattern(rule.logPattern).captures
            else _is_every_match_bad
        )
    if kind == "threshold":
        assert rule.operator is not None
        assert rule.metricThreshold is not None
        compare, threshold = COMPARE[rule.operator], rule.metricThreshold
        return lambda value: None if value is None else compare(value, threshold)
    return _is_every_match_bad


def _is_value_not_finite(value: float | None) -> bool | None:
    return None if value is None else not math.isfinite(value)


def _is_every_match_bad(value: float | None) -> bool:
    return True


SHOWN = 400
"""Bytes of a line that a verdict carries."""
SHOWN_VALUE = 64


class LogRuleVerdict(Struct, frozen=True):
    """A rule has fired. It fires again only after a good data point, or a match, came between."""

    rule: str
    what: str
    """`hang`, `threshold`, `nan`, `spike`, `slow`, `upload` or `seen`."""
    why: str
    at: float
    """When, in the feeder's seconds: when the line was fed; for a hang, when it was due."""
    line_number: int
    """The line that fired, from 1; for a hang, the last line that matched, 0 where none did."""
    line: str
    value: str
    """The captured text as it is in the line; empty without one."""


class LogRuleEngine:
    """All rules over one log."""

    def __init__(self, rules: LogRuleSet, started: float) -> None:
        """`started` is when the job did: start cut-offs count from there."""
        self.watches = tuple(LogRuleState(rule, started) for rule in rules.rules)
        self.lines = 0
        # One pattern often serves two rules: is it a number, and does it jump?
        several = Counter(watch.pattern.text for watch in self.watches)
        patterns = {watch.pattern.text: watch.pattern for watch in self.watches}
        self._shared = tuple(patterns[text] for text, times in several.items() if times > 1)

    def feed(self, block: bytes, at: float) -> list[LogRuleVerdict]:
        """Judge whole lines, each ended by a newline, that were there at the time `at`."""
        shared = {pattern.text: list(pattern.matches(block)) for pattern in self._shared}
        found: list[LogRuleVerdict] = []
        for watch in self.watches:
            matches = shared.get(watch.rule.logPattern)
            found += watch.feed(block, at, self.lines, matches)
        self.lines += block.count(b"\n")
        return sorted(found, key=lambda verdict: verdict.line_number)

    def look(self, at: float) -> list[LogRuleVerdict]:
        """Return the hangs that are due, everything written up to `at` having been fed."""
        found = [verdict for w in self.watches if (verdict := w.look(at)) is not None]
        return sorted(found, key=lambda verdict: verdict.at)


class LogRuleState:
    """One rule and what it remembers: bounded, whatever the log holds."""

    def __init__(self, rule: LogRule, started: float) -> None:
        self.rule = rule
        self.matched = self.fired = self.unread = 0
        self.pattern = LogLinePattern(rule.logPattern)
        self._stop = LogLinePattern(rule.stopPattern) if rule.stopPattern else None
        self._success = LogLinePattern(rule.successPattern) if rule.successPattern else None
        self._judge = make_log_rule_evaluator(rule) if rule.judges else None
        self._wants_number = rule.judges in ("threshold", "nan", "spike", "slow")
        self._started = started
        self._last_at: float | None = None
        self._last_line: tuple[int, str] = (0, "")
        self._bad = 0
        self._hanging = self._stopped = False

    @property
    def due(self) -> float | None:
        """Return when this rule will call a hang if nothing matches before; None: never."""
        if self._stopped or self._hanging:
            return None
        if self._last_at is None:
            after, wait = self._started, self.rule.expectedStartCutOffInSeconds
        else:
            after, wait = self._last_at, self.rule.expectedRecurringFrequencyInSeconds
        return None if wait is None else after + wait

    def look(self, at: float) -> LogRuleVerdict | None:
        """Return the hang, once, when it is due."""
        due = self.due
        if due is None or at < due:
            return None
        self._hanging = True
        self.fired += 1
        if self._last_at is None:
            why = f"no line matched within {due - self._started:g} s of the start"
        else:
            why = f"no line matched for {due - self._last_at:g} s"
        number, text = self._last_line
        return LogRuleVerdict(
            rule=self.rule.name,
            what="hang",
            why=why,
            at=due,
            line_number=number,
            line=text,
            value="",
        )

    def feed(
        self, block: bytes, at: float, before: int, matches: Iterable[LogPatternMatch] | None = None
    ) -> list[LogRuleVerdict]:
        """Judge this rule's matches in `block`; `before` lines came before it."""
        if self._stopped:
            return []
        end = len(block)
        if self._stop and (stop := next(self._stop.matches(block), None)) is not None:
            end, self._stopped = _find_start_of_matched_line(block, stop), True
        good = self._success.matches(block) if self._success else iter(())
        success = next(good, None)
        verdicts = []
        last: LogPatternMatch | None = None
        for match in self.pattern.matches(block) if matches is None else matches:
            if match.at >= end:
                break
            while success is not None and success.at <= match.end:
                self._bad, success = 0, next(good, None)
            last = match
            self.matched += 1
            if self._judge is not None and self._should_rule_fire(match):
                verdicts.append(self._make_rule_verdict(block, match, at, before))
        if success is not None and success.at < end:
            self._bad = 0
        if last is not None:
            self._last_at, self._hanging = at, False
            if self.rule.expectedRecurringFrequencyInSeconds:
                self._last_line = _find_number_and_text_of_line(block, last, before)
        return verdicts

    def _should_rule_fire(self, match: LogPatternMatch) -> bool:
        """Return whether this data point makes the rule fire."""
        assert self._judge is not None
        value = None
        if self._wants_number and match.captured is not None:
            value = parse_captured_number(match.captured)
            self.unread += value is None
        bad = self._judge(value)
        if bad is None:
            return False
        self._bad = self._bad + 1 if bad else 0
        return self._bad == self.rule.points

    def _make_rule_verdict(
        self, block: bytes, match: LogPatternMatch, at: float, before: int
    ) -> LogRuleVerdict:
        self.fired += 1
        value = _decode_printable_text(match.captured or b"", SHOWN_VALUE)
        why = _describe_rule_match(self.rule, value)
        assert self.rule.judges is not None
        line_number, line = _find_number_and_text_of_line(block, match, before)
        return LogRuleVerdict(self.rule.name, self.rule.judges, why, at, line_number, line, value)


def _find_number_and_text_of_line(
    block: bytes, match: LogPatternMatch, before: int
) -> tuple[int, str]:
    begin = _find_start_of_matched_line(block, match)
    text = _decode_printable_text(block[begin : min(match.end, begin + SHOWN)], SHOWN)
    return before + block.count(b"\n", 0, begin) + 1, text


def _find_start_of_matched_line(block: bytes, match: LogPatternMatch) -> int:
    return block.rfind(b"\n", 0, match.at) + 1


def _decode_printable_text(raw: bytes, limit: int) -> str:
    """Return the bytes of an untrusted line as text that cannot mislead a terminal."""
    text = raw[:limit].decode(errors="replace")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def _describe_rule_match(rule: LogRule, value: str) -> str:
    times = f", {rule.points} times running" if rule.points > 1 else ""
    match rule.judges:
        case "threshold":
            return f"{value} is {rule.operator} {rule.metricThreshold:g}{times}"
        case "nan":
            return f"{value or 'the line'} is no finite number{times}"
        case "spike" | "slow":
            side = "over" if rule.is_higher_worse else "under"
            return f"{value} is far {side} the run's own median{times}"
        case "upload":
            return f"an upload failed{times}"
        case _:
            return f"the line was seen{times}"


STAMP = LogLinePattern(
    r"^.{0,120}?\b(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?:Z|[+-]\d\d:?\d\d)?)"
)
"""Times as ISO 8601 and Python's logging write them, near a line's beginning."""


class LogReplayResult(Struct, frozen=True):
    """What came of it. Times are seconds since 1970; None where no line had one."""

    engine: LogRuleEngine
    verdicts: tuple[LogRuleVerdict, ...]
    first: float | None
    last: float | None
    size: int


def replay_log_file(rules: LogRuleSet, path: Path) -> LogReplayResult:
    """Run a file through rules.

    A line without a time has that of the line before it; times never run backwards. Without any
    time in the first megabyte hangs are not judged, and every verdict's time is 0.
    Raises Unavailable or NotALogFileError where the file cannot be read.
    """
    blocks = _read_log_file_blocks(path)
    block = next(blocks, b"")
    first = next((at for _, at in find_log_line_times(block)), None)
    engine = LogRuleEngine(rules, first or 0.0)
    verdicts: list[LogRuleVerdict] = []
    now, size = first, 0
    while block:
        size += len(block)
        if now is None:
            verdicts += engine.feed(block, 0.0)
        else:
            now = _evaluate_timestamped_log_lines(engine, block, now, verdicts)
        block = next(blocks, b"")
    return LogReplayResult(engine, tuple(verdicts), first, now, size)


def find_log_line_times(block: bytes) -> Iterator[tuple[int, float]]:
    """Yield the offset and time of every line that carries a time (UTC where it names no zone)."""
    for match in STAMP.matches(block):
        try:
            at = parse_iso_time((match.captured or b"").decode())
        except ValueError:
            continue
        yield match.at, (at.replace(tzinfo=UTC) if at.tzinfo is None else at).timestamp()


def _evaluate_timestamped_log_lines(
    engine: LogRuleEngine, block: bytes, now: float, verdicts: list[LogRuleVerdict]
) -> float:
    begin = 0
    for offset, at in find_log_line_times(block):
        if at <= now:
            continue
        if offset > begin:
            verdicts += engine.feed(block[begin:offset], now)
        # A line at the very moment a hang is due still comes in time.
        verdicts += engine.look(math.nextafter(at, 0.0))
        begin, now = offset, at
    verdicts += engine.feed(block[begin:], now)
    return now


def _read_log_file_blocks(path: Path) -> Iterator[bytes]:
    follower = LogFollower(path)
    try:
        if not path.exists():
            raise ServiceUnavailable(
                f"cannot read the log {path}: there is no such file", "name the log file of a job"
            )
        done = False
        while not done:
            lines, done = follower.read()
            if lines:
                yield lines
        lines = follower.finish()
        if lines:
            yield lines
    finally:
        follower.close()
