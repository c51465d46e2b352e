"""What a stranger may say: every field that one writes, at the extremes of its type.

All is thrown by one `random.Random`: a seeded one plays a million, Hypothesis's own one shrinks.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from random import Random
from typing import Any

from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.cloud_facts import InstanceStatus
from tests.engine.machine.stranger import Words
from tests.fakes.slurm_text import JOB as FIELDS

Throw = Callable[[Random], Any]
"""One value of a kind."""

TIMES = ("0001-01-01T00:00:00", "1970-01-01T00:00:00", "9999-12-31T23:59:59",
         "10000-01-03T23:00:00", "NONE", "Unknown", "2026-13-45T99:99:99")  # fmt: skip
WIRE_TIMES = tuple(
    f"{t}{zone}"
    for t in (*TIMES[:2], "2026-11-21T11:59:58", "2026-11-21T12:00:00", TIMES[2])
    for zone in ("+14:00", "Z", "-14:00")
)
"""From the first to the last but for the two in the middle, which overlap."""
NUMBERS = ("0", "-1", "4294967295", str(2**53), "9" * 400, "1e308", "NaN", "\u00b2", "\u0663", "1-")
KNOWN_MARK = "0" * 16
"""What a mark would be that somebody can guess."""
TEXTS = (
    "", " ", "(null)", "\x00", "\x1b[2J\x9b1m", "\u202ex", "caf\udce9", "'\"\\ $(id)`", "x" * 5000,
    "\n7m0000000000000000;RUNNING", "NodeList=n[1-7] JobState=RUNNING", "m;.m;.", "n[1-99999]",
    "x\nNodeName=n2 State=DOWN Reason=Not responding Partitions=all", "hpctl:{", "hpctl:{}", "a[",
    f"xm{KNOWN_MARK}.\n1m{KNOWN_MARK};",
)  # fmt: skip
LETTERS = (
    "".join(map(chr, range(256)))
    + "\u00b2\u0663\u202e\u2066\u200b\ufeff\ufffd\udc80\udce9\U0001f4a3"
)
STATES = (
    "RUNNING", "PENDING", "FAILED", "COMPLETING", "NODE_FAIL", "OUT_OF_MEMORY", "REQUEUE_HOLD",
)  # fmt: skip
CLOUD = tuple(status.value for status in InstanceStatus)
FREE = tuple(
    name for name in FIELDS
    if name not in ("JobID", "State", "NodeList", "UserID", "Partition", "Comment")
)  # fmt: skip


def of(*values) -> Throw:
    """One of these values."""
    size = len(values)
    return lambda dice: values[int(dice.random() * size)]  # choice() takes three times as long


def either(*throws: Throw) -> Throw:
    """A value of one of these kinds."""
    which = of(*throws)
    return lambda dice: which(dice)(dice)


def some(optional, shares=(0.15, 0.5, 0.9), **always):
    """A dict with some of the optional keys, by one of these shares."""

    def throw(dice: Random) -> dict[str, Any]:
        share = dice.choice(shares)
        answer = {name: kind(dice) for name, kind in always.items()}
        answer |= {name: kind(dice) for name, kind in optional.items() if dice.random() < share}
        return answer

    return throw


def rarely(optional: Mapping[str, Throw], **always: Throw) -> Throw:
    """A dict with few of the optional keys, or none."""
    return some(optional, (0.0, 0.05, 0.2), **always)


def mostly(kind: Throw, wild: Throw) -> Throw:
    """What the reader takes, and now and then what it may refuse."""
    return lambda dice: (kind if dice.random() < 0.97 else wild)(dice)


def few(kind: Throw, most: int) -> Throw:
    """A list of at most so many."""
    return lambda dice: [kind(dice) for _ in range(dice.randint(0, most))]


def text(dice: Random) -> str:
    """Any text, of at most 40 characters."""
    return "".join(dice.choices(LETTERS, k=dice.randint(0, 40)))


def symbols(dice: Random) -> str:
    """Any text of Unicode's first plane that can be encoded."""
    return "".join(chr(dice.randrange(0xD800)) for _ in range(dice.randint(0, 12)))


def joined(dice: Random) -> str:
    """Two words as one."""
    word = dice.choice((" ", "\n", ",", ";", "=", "")).join
    return word((extreme(dice), extreme(dice)))


extreme = either(of(*TIMES), of(*NUMBERS), of(*TEXTS))
words = either(of(*TIMES), of(*NUMBERS), of(*TEXTS), text, symbols, joined)
_finite = of(0.0, -1.0, 1e-300, 1e300, 1.7e308, 30, 2**70)
floats = either(_finite, _finite, of(float("inf"), float("nan")))
finite = mostly(_finite, floats)


def _short(dice: Random) -> str:
    """Words that a wire takes: short, and no half of a surrogate pair."""
    message: str = words(dice)
    return message[:200].encode("utf-8", "replace").decode()


def integer(dice: Random) -> int:
    """Any of up to 128 bits, either sign."""
    return dice.randint(-1, 1) * dice.getrandbits(dice.choice((3, 8, 32, 53, 64, 128)))


flat = either(floats, of(None, True, False), words, integer)


def values(dice: Random, depth: int = 2):
    """Any JSON."""
    kind = dice.randrange(8)
    if kind > 1 or not depth:
        return flat(dice)
    inner = [values(dice, depth - 1) for _ in range(dice.randint(0, 3))]
    return inner if kind else {text(dice)[:8]: value for value in inner}


policies = some(
    {
        "backoff": some({"first_s": values, "factor": values, "cap_s": values}),
        **dict.fromkeys(
            ("nodes", "restarts", "window_s", "without_progress", "same_signature", "proven_s",
             "final_exit_codes", "log_rules", "notify", "spares", "grow_gain", "hang_factor",
             "save_grace_s"), values),
        "on": some(dict.fromkeys(("crash", "node", "killed", "hang"), some({
            "ladder": of(["requeue"], ["none"], ["hold"], ["step", "requeue"]),
            "hold_same": of(True, False), "backoff": of(True, False), "exclude": values,
        }))),
    }
)  # fmt: skip
registrations = some(
    {"policy": either(policies, values), "spares": values, "save_signal": values,
     "supervised": values}
)  # fmt: skip


def registered(dice: Random) -> str:
    """A Comment that hpctl reads."""
    return "hpctl:" + json.dumps(registrations(dice))


wild_jobs = some(
    {**dict.fromkeys(FREE, words), "Comment": either(words, registered)},
    State=either(of(*STATES), words),
)
crashed_jobs = rarely(
    {**dict.fromkeys(FREE, words), "Comment": either(words, registered)},
    State=of("FAILED", "NODE_FAIL", "REQUEUE_HOLD", "COMPLETING"),
    exit_code=of("256", "23808", "9"),
    Comment=either(of("hpctl:{}"), registered),
    EndTime=of("2026-11-21T11:59:59", "2026-11-21T11:41:00", *TIMES[:4]),
    Reason=of("NonZeroExitCode", "NodeFail", "None"),
)
"""Such as hpctl requeues."""
jobs = either(wild_jobs, crashed_jobs)

ids = mostly(of("i-1", "i-8", "b8", "x" * 64, "A:_.-"), words)
sentence = mostly(_short, words)


def times(dice: Random) -> dict[str, str]:
    """When a finding was first and last seen."""
    first, last = sorted(dice.choices(range(len(WIRE_TIMES)), k=2))
    return {"first": WIRE_TIMES[first], "last": WIRE_TIMES[last]}


_findings = rarely(
    {
        "code": mostly(of("79", "154", "13", "74", "48", "145"), sentence),
        "device": sentence, "detail": sentence, "evidence": sentence,
        "count": mostly(of(1, 2**53), of(0, 2**70, -1)), "clears": of("boot", "gone", "operator"),
        "job": mostly(of("", "9", "1", "_+", "9" * 32), words),
    },
    check=mostly(of("kernel.xid", "kernel.sxid", "gpu.ecc", "host.disk", "x" * 64), words),
    verdict=of("ok", "warn", "fail", "fail", "unknown"),
    code=of("79", "154", "13", "74", "48", "145"),
)  # fmt: skip
reports = rarely(
    {"sent_at": of(*WIRE_TIMES), "agent_start": of(*WIRE_TIMES), "instance": ids, "boot": ids,
     "gauges": lambda dice: {mostly(of("gpu.heat", "x" * 64), words)(dice): finite(dice)}},
    findings=few(lambda dice: {**times(dice), **_findings(dice)}, 4),
)  # fmt: skip
told = some(
    {
        "restarts": of(0, 1, 2, 3, 2**32), "after_s": mostly(of(0, 1, 86400.0), of(1e308)),
        "exclude": few(of("n1", "n3", "n8", "zz"), 4), "why": sentence, "progress": of(0, 2**53),
        "trouble": some(
            {"node": of("n8", "n1"), "signature": sentence, "exit_code": of(-255, 0, 93, 255)},
            kind=of("crash", "node", "hang", "final", "preempted"), at=of(*WIRE_TIMES),
            why=sentence,
        ),
    },
    wish=of("", "requeue", "hold"),
)  # fmt: skip
clouds = rarely(
    {
        "InstanceStatus": mostly(some({}, Status=either(of(*CLOUD), words), Message=words), values),
        "LaunchTime": either(values, of(*(datetime(y, 12, 31, 23, tzinfo=UTC) for y in (1, 9999)))),
        "InstanceGroupName": values, "NodeLogicalId": values,
    }
)  # fmt: skip


def _maybe(kind: Throw) -> Throw:
    return either(kind, kind, kind, of(None))


_reports, _told, _clouds = _maybe(reports), _maybe(told), _maybe(clouds)


def stranger(dice: Random) -> Words:
    """All that one node, one job and one user say."""
    return Words(
        job=jobs(dice), excluded=words(dice), node=words(dice), report=_reports(dice),
        told=_told(dice), cloud=_clouds(dice),
    )  # fmt: skip
