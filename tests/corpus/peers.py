"""What others publish about detection, beside what the corpus shows of hpctl.

Their figures are by design or claim, from their documentation, code and issues; nobody publishes
precision or recall on a corpus that others can run.
"""

from msgspec import Struct

from hpctl.core.catalogue import vendor_deviations
from tests.corpus.score import Score


class Line(Struct, frozen=True):
    """One thing that a user would measure: the best that is published, ours, and our gate."""

    what: str
    published: str
    ours: str
    gate: str
    met: bool


def lines(score: Score) -> list[Line]:
    """Every line of which the corpus can say something."""
    return [_kernel(score), _benign(score), _remedy(score), _hang(score), _brake(score), _table()]


def _kernel(score: Score) -> Line:
    delays = sorted(
        result.played.delay_s
        for result in score.results
        if result.played.delay_s is not None and result.case.kernel
    )
    p50, p99 = delays[len(delays) // 2], delays[int(len(delays) * 0.99)]
    return Line(
        "kernel line to a drain decision",
        "15 s (NVSentinel), 60 s (gpud, healthagent), 5 min (Meta RSC)",
        f"p50 {p50:.0f} s, p99 {p99:.0f} s: waiting for companion lines",
        "p50 2 s, p99 10 s",
        p50 <= 2 and p99 <= 10,
    )


def _benign(score: Score) -> Line:
    return Line(
        "node actions on benign cases",
        "672 in 3 h on 3 nodes (NVSentinel#1710)",
        f"{len(score.false_actions)} of {len(score.benign)} cases",
        "0",
        not score.false_actions,
    )


def _remedy(score: Score) -> Line:
    return Line(
        "faults with the right first remedy",
        "not published; gpud's table differs from NVIDIA's on 12 codes and more",
        f"{100 * score.right_remedy:.1f} %",
        "100 %",
        score.right_remedy == 1,
    )


def _hang(score: Score) -> Line:
    slowest = max(dict(score.delays()).get("gpu-driver-hang", [float("inf")]))
    return Line(
        "a driver call that hangs",
        "never reported (DCGM#313)",
        f"found after {slowest:.0f} s",
        "30 s",
        slowest <= 30,
    )


def _brake(score: Score) -> Line:
    found = [r.right for r in score.results if r.case.name.startswith("power brake")]
    return Line(
        "a power brake for hours",
        "36 h on 9 nodes unnoticed (NVSentinel#1666)",
        "shown as Suspect" if found and all(found) else "missed",
        "found",
        bool(found) and all(found),
    )


def _table() -> Line:
    unargued = [deviation for deviation in vendor_deviations() if not deviation.ours]
    return Line(
        "departures from NVIDIA's catalogue without a reason",
        "12 and more (gpud), 63 fatal (EKS agent)",
        str(len(unargued)),
        "0",
        not unargued,
    )
