"""`make fuzz`: each decoder for SECONDS, coverage-guided by atheris where it is installed.

The corpus that grows lies in build/fuzz/NAME and is taken up by the next run. An input that fails
goes to tests/fuzz/found/NAME: commit it with the fix, and `make test` plays it for ever.
"""

import argparse
import hashlib
import importlib.util
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.process import run_text

HERE = Path(__file__).parent
FOUND = HERE / "found"
CORPUS = HERE.parents[1] / "build" / "fuzz"


def guided(name: str, seconds: int) -> None:
    """In a process of its own: libFuzzer ends it."""
    import atheris

    with atheris.instrument_imports(include=["hpctl", "tests"]):
        from tests.fuzz.targets import MOST, SLOW_S, TARGETS, once

    corpus = _corpus(name, TARGETS[name].seeds)
    flags = [
        f"-max_total_time={seconds}", f"-max_len={MOST}", f"-timeout={SLOW_S:.0f}",
        "-rss_limit_mb=1024", "-verbosity=0", "-print_final_stats=1",
        f"-artifact_prefix={FOUND / name}/",
    ]  # fmt: skip
    atheris.Setup(["fuzz", *flags, str(corpus)], lambda raw: once(TARGETS[name], raw) and None)
    atheris.Fuzz()


def blind(name: str, seconds: int) -> None:
    """Mutations of the seeds, without coverage."""
    from tests.fuzz.mutate import mutated
    from tests.fuzz.targets import TARGETS, once

    target, dice = TARGETS[name], random.Random()
    seeds = [p.read_bytes() for p in _corpus(name, target.seeds).iterdir()]
    until, count = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        raw = mutated(seeds, dice)
        try:
            once(target, raw)
        except BaseException:
            (FOUND / name / hashlib.sha1(raw).hexdigest()).write_bytes(raw)
            raise
        count += 1
    print(f"stat::number_of_executed_units: {count}")


def _corpus(name: str, seeds: tuple[bytes, ...]) -> Path:
    corpus = CORPUS / name
    corpus.mkdir(parents=True, exist_ok=True)
    (FOUND / name).mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        (corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    return corpus


def _child(name: str, seconds: int) -> tuple[str, int, str]:
    command = [sys.executable, "-m", "tests.fuzz", "--child", "--seconds", str(seconds), name]
    done = run_text(command, timeout=seconds + 120)
    return name, done.returncode, done.stdout + done.stderr


def main() -> int:
    parser = argparse.ArgumentParser(prog="make fuzz")
    parser.add_argument("--seconds", type=int, default=600, help="for each decoder")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all of them")
    asked = parser.parse_args()
    with_atheris = importlib.util.find_spec("atheris") is not None
    if asked.child:
        # Before anything of hpctl is imported: atheris instruments what it sees being imported.
        (guided if with_atheris else blind)(asked.names[0], asked.seconds)
        return 0
    from tests.fuzz.targets import TARGETS

    if unknown := set(asked.names) - set(TARGETS):
        known = ", ".join(TARGETS)
        parser.error(f"no such decoder: {', '.join(sorted(unknown))}; there are {known}")
    how = "atheris" if with_atheris else "mutations alone (pip install atheris guides them)"
    print(f"{asked.seconds} s each, by {how}")
    failed = 0
    with ThreadPoolExecutor(2) as pool:
        for name, code, text in pool.map(
            lambda n: _child(n, asked.seconds), asked.names or TARGETS
        ):
            count = next((w.split()[-1] for w in text.splitlines() if "executed_units" in w), "?")
            print(f"  {name:20} {count:>10} inputs  {'FAILED' if code else 'held'}", flush=True)
            if code:
                failed += 1
                print("\n".join(f"      {line}" for line in text.splitlines()[-25:]))
    print(f"{failed} of {len(asked.names or TARGETS)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
