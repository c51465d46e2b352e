"""What `progress.step` costs the training loop: microseconds a call, in a process of its own.

The rival is what people write instead: a line into an open, unbuffered file on a local disk, and
the same with the `logging` module.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.table import Outcome, Row, median
from hpctl.jobs.run.progress_notes import open_progress_note_listener, parse_progress_note

RUNS = 5
CALLS = 2_000
OFF_BAR, ON_BAR = 2.0, 10.0
ROOT = str(Path(__file__).resolve().parents[1])
LOOP = f"""
import sys, time
{{setup}}
taken = []
for n in range({CALLS}):
    begun = time.perf_counter()
    {{call}}
    taken.append(time.perf_counter() - begun)
    if n % 20 == 0:
        time.sleep(0.002)
taken.sort()
print(taken[len(taken) // 2] * 1e6, taken[int(len(taken) * 0.99)] * 1e6)
"""
# The limit on lines a second is lifted, or most of the calls would send nothing.
PROGRESS = (
    "from hpctl import progress\nimport hpctl.progress as p\np.BURST = p.RATE = 1e12\n"
    "r = p._get_reporter()\nr._rate = r._credit = 1e12"
)
OURS = "progress.step(n, loss=0.25, lr=0.001)"
PLAIN = "f = open(sys.argv[1] + '/plain', 'ab', buffering=0)"
LOGGING = "import logging\nlogging.basicConfig(filename=sys.argv[1] + '/log', level=logging.INFO)"


def run() -> Outcome:
    """Off, each way of being on, the rivals, and how much one listener takes."""
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as directory:
        plain, _ = _cost(PLAIN, "f.write(b'step=%d loss=%.9g\\n' % (n, 0.25))", "", directory)
        logged, _ = _cost(LOGGING, "logging.info('step=%d loss=%.9g', n, 0.25)", "", directory)
        off, _ = _cost(PROGRESS, OURS, "", directory)
        rows = [Row("nobody listens", off, "µs", "logging.info", logged, OFF_BAR)]
        notes = []
        with (
            open_progress_note_listener() as unix,
            open_progress_note_listener(["localhost"]) as udp,
        ):
            places = {"unix": unix.address, "udp": udp.address, "file": f"file:{directory}/p"}
            for name, address in places.items():
                on, p99 = _cost(PROGRESS, OURS, address, directory)
                rows.append(Row(f"{name}, median call", on, "µs", "logging.info", logged, ON_BAR))
                notes.append(f"{name}: 99th percentile {p99:.1f} µs")
    rows.append(Row("a line into a file", plain, "µs", "logging.info", logged))
    rows.append(Row("reading one note", _reading(), "µs"))
    notes.append(f"medians of {RUNS} processes, {CALLS} calls each, loss and one number")
    return Outcome("progress", rows, notes)


def _cost(setup: str, call: str, address: str, directory: str) -> tuple[float, float]:
    """Median and 99th percentile of a call, in microseconds."""
    environment = {**os.environ, "PYTHONPATH": ROOT, "HPCTL_PROGRESS": address, "RANK": "3"}
    command = [sys.executable, "-c", LOOP.format(setup=setup, call=call), directory]
    found = []
    for _ in range(RUNS):
        done = subprocess.run(
            command, env=environment, check=True, timeout=120, capture_output=True, text=True
        )
        found.append([float(word) for word in done.stdout.split()])
    return median([one[0] for one in found]), median([one[1] for one in found])


def _reading() -> float:
    import timeit

    line = b"step=12345 loss=0.25 lr=0.001 rank=3 node=ip-10-1-2-3 gpu=3 pid=12345\n"
    return (
        min(timeit.repeat(lambda: parse_progress_note(line), number=10_000, repeat=3))
        / 10_000
        * 1e6
    )
