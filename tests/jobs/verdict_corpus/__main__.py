"""Make the runs of a part: `python -m tests.jobs.verdict_corpus --out DIR --part first --seed 1`.

Each run is a process in namespaces of its own, and ends with it at the latest. It needs root: for
mounts, networks and control groups.
"""

import argparse
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from tests.jobs.verdict_corpus.cases import Case, vary_cases
from tests.jobs.verdict_corpus.fifth_part import FIFTH
from tests.jobs.verdict_corpus.first_half import FIRST
from tests.jobs.verdict_corpus.fourth_part import FOURTH
from tests.jobs.verdict_corpus.outside import remove_groups
from tests.jobs.verdict_corpus.pack import ROOT, read_run, write_archive
from tests.jobs.verdict_corpus.second_half import SECOND
from tests.jobs.verdict_corpus.seventh_part import SEVENTH
from tests.jobs.verdict_corpus.sixth_part import SIXTH
from tests.jobs.verdict_corpus.third_part import THIRD

PARTS = {
    "first": FIRST,
    "second": SECOND,
    "third": THIRD,
    "fourth": FOURTH,
    "fifth": FIFTH,
    "sixth": SIXTH,
    "seventh": SEVENTH,
}
LIMIT_S = 600.0
"""Seconds that a run may take, with its start on a busy machine."""
FIRST_JOB = 900_000


def make_run(case: Case, out: Path, job: int) -> str:
    """Make one run below `out`; return why there is none, or an empty text."""
    folder = out / case.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "case.json").write_bytes(msgspec.json.encode(case))
    (folder / "truth.json").write_text(json.dumps(case.make_truth()))
    # It ends with this process, however that ends.
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--uts"]
    command += ["--fork", "--kill-child", "--mount-proc", sys.executable]
    command += ["-m", "tests.jobs.verdict_corpus.stage"]
    command += [str(folder / "case.json"), str(folder), str(job)]
    try:
        done = subprocess.run(
            command, cwd=ROOT, timeout=LIMIT_S, capture_output=True, text=True, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it did not end within {LIMIT_S:g} s"
    finally:
        remove_groups(job)
    return done.stderr[-2000:] if done.returncode else ""


def make_runs(cases: Sequence[Case], out: Path, at_once: int) -> list[str]:
    """Make runs, so many at once; return the names of those that there are."""

    def make_one(item: tuple[int, Case]) -> str:
        number, case = item
        began = time.monotonic()
        # Unique on this machine: the kernel's lines are chosen by it.
        why = make_run(case, out, FIRST_JOB + time.time_ns() // 10**6 % 10**5 * 100 + number)
        why = why or ("" if (out / case.name / "run.json").exists() else "no record")
        taken = time.monotonic() - began
        print(f"{case.name}: {why or 'made'} ({taken:.0f} s)", flush=True)
        return "" if why else case.name

    with ThreadPoolExecutor(at_once) as pool:
        return [name for name in pool.map(make_one, enumerate(cases)) if name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--part", choices=[*PARTS], required=True)
    parser.add_argument("--seed", type=int, default=0, help="moves steps; 0: as they are listed")
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--only", action="append", default=[], help="a name or a kind")
    parser.add_argument("--archive", type=Path, help="also pack every run of --out into this file")
    chosen = parser.parse_args()
    out = chosen.out.absolute()
    cases = vary_cases(PARTS[chosen.part], chosen.seed)
    if chosen.only:
        cases = [case for case in cases if case.name in chosen.only or case.kind in chosen.only]
    made = make_runs(cases, out, chosen.at_once)
    if chosen.archive:
        folders = sorted(path.parent for path in out.glob("*/run.json"))
        write_archive(chosen.archive, {path.name: read_run(path) for path in folders})
    return 0 if len(made) == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
