"""How many kernel log lines a second the agent reads, sorts out and folds, and what one costs.

The rivals, on the same lines: every pattern of the fault tables searched for in every line, as a
list of regular expressions from a configuration file would be; and the least that a reader can do,
taking the header off each line.
"""

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.table import Outcome, Row, median
from hpctl.detection.findings import FindingStore
from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.kmsg import KmsgFileFollower, format_kmsg_record, parse_kmsg_record
from tests.detection.kernel_cases import PATTERNS

LINES = 30_000
"""One second of the storm that the agent must keep up with."""
RUNS = 5
ROUNDS = 10
"""Of the same lines with other numbers in them, for the memory."""
_STORM = "NVRM: Xid (PCI:0000:10:00): 95, pid={pid}, name=python, Uncontained: FBHUB. RST: Yes"
_NOISE = (
    "systemd-journald[512]: Data hash table of /var/log/journal/x/system.journal has {n} entries",
    "audit: type=1400 audit(1714824000.123:{n}): apparmor=ALLOWED operation=open pid={pid}",
    "IPv6: ADDRCONF(NETDEV_CHANGE): veth{n}: link becomes ready",
    "nvidia-nvlink: Nvlink Core is being initialized, major device number {n}",
)


def run() -> Outcome:
    """A second's storm: six lines in ten one error again and again, the rest noise."""
    whole = [_record(n) for n in range(LINES)]
    cpu: dict[str, list[float]] = {"ours": [], "patterns": [], "headers": []}
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as directory:
        path = Path(directory) / "kmsg"
        path.write_bytes(b"".join(whole))
        work: dict[str, Callable[[], object]] = {
            "ours": lambda: _ours(path, KernelLogAnalyzer(lambda _pid, _at: "")),
            "patterns": lambda: _patterns(whole, PATTERNS),
            "headers": lambda: [parse_kmsg_record(line) for line in whole],
        }
        for _ in range(RUNS):
            for name, one in work.items():
                begun = time.process_time()
                one()
                cpu[name].append(time.process_time() - begun)
        grown = _growth(path)
    us = {name: 1e6 * median(taken) / LINES for name, taken in cpu.items()}
    rate = {name: 1e6 / each for name, each in us.items()}
    share = us["ours"] * LINES / 1e4
    every = f"all {len(PATTERNS)} patterns"
    return Outcome(
        "storm",
        [
            Row("lines a second", rate["ours"], "/s", every, rate["patterns"], LINES, least=True),
            Row("processor time a line", us["ours"], "us", every, us["patterns"]),
            Row("processor time a line", us["ours"], "us", "headers alone", us["headers"]),
            Row("of one core at 30,000 lines a second", share, "%", bar=50.0),
            Row(f"memory grown over {ROUNDS * LINES:,} lines", grown, "MB", bar=4.0),
        ],
        [
            f"processor time, medians of {RUNS} in turn; reading the file, parsing, sorting out"
            " and folding into findings"
        ],
    )


def _record(n: int) -> bytes:
    text = _NOISE[n % len(_NOISE)] if n % 5 < 2 else _STORM
    return format_kmsg_record(text.format(n=n, pid=1000 + n % 8), n)


def _ours(path: Path, kernel: KernelLogAnalyzer) -> None:
    log, findings = KmsgFileFollower(path), FindingStore()
    while records := log.read():
        for finding in kernel.findings(records):
            findings.add(finding)
    log.close()
    (only,) = findings.all()
    assert only.count == LINES * 3 // 5


def _patterns(whole: Sequence[bytes], patterns: Sequence[re.Pattern[str]]) -> None:
    for raw in whole:
        record = parse_kmsg_record(raw)
        assert record is not None
        any(shape.search(record.text) for shape in patterns)


def _growth(path: Path) -> float:
    """How much resident memory grows over many rounds, in MB, after a first one."""
    kernel, findings = KernelLogAnalyzer(lambda _pid, _at: ""), FindingStore()
    before = 0.0
    for number in range(ROUNDS + 1):
        path.write_bytes(b"".join(_record(number * LINES + n) for n in range(LINES)))
        log = KmsgFileFollower(path)
        while records := log.read():
            for finding in kernel.findings(records):
                findings.add(finding)
        log.close()
        if number == 0:
            before = _resident_mb()
    return max(0.0, _resident_mb() - before)


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6
