"""Ranks forked from a template that has imported their modules, without torch: real processes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.elastic_bed import (
    RANK,
    ROOT,
    Launchers,
    Start,
    all_wait,
    scripted,
    until_gone,
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with scripted(tmp_path) as begin:
        yield begin


MODULE = """
import os, threading
imported_by = os.getpid()
"""
WARM = """
import random
try:
    import slow
    from_template = slow.imported_by != os.getpid()
except Exception:
    from_template = None
put(f"warm-{rank}-{count}", json.dumps([from_template, os.getppid(), random.random(),
    sys.argv[1:], __name__, os.getpgid(0) == os.getpid(), get("RANK")]))
"""


def warm(start: Start, tmp_path: Path, body: str, module: str = MODULE, **more: Any) -> Launchers:
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/slow.py").write_text(module)
    path = f"{tmp_path / 'modules'}:{ROOT}"
    return start(WARM + body, "--warm-import=slow", PYTHONPATH=path, OMP_NUM_THREADS="1", **more)


def warmth(group: Launchers, rank: int, count: int) -> list[Any]:
    return list(json.loads((group.save / f"warm-{rank}-{count}").read_text()))


def test_warm_ranks_are_forked_fresh_from_one_process_and_run_as_main(
    start: Start, tmp_path: Path
) -> None:
    group = warm(start, tmp_path, "wait()", nodes=1)
    all_wait(group, ranks=2)
    os.kill(group.rank_pids()[1], signal.SIGKILL)
    all_wait(group, ranks=2, count=1)
    (group.save / "go").touch()
    assert group.wait() == [0]
    told = [warmth(group, rank, count) for count in range(2) for rank in range(2)]
    assert [each[0] for each in told] == [True] * 4
    assert len({each[1] for each in told}) == 1, "one parent: the template"
    assert len({each[2] for each in told}) == 4, "random numbers of their own"
    assert [each[3:] for each in told] == [[[], "__main__", True, r] for r in ("0", "1")] * 2
    assert until_gone(group) == []


def test_a_warm_ranks_exception_is_told_without_record(start: Start, tmp_path: Path) -> None:
    group = warm(start, tmp_path, "if rank == 1 and first:\n    raise KeyError('weight')\n")
    assert group.wait() == [0, 0]
    (trouble,) = group.account().troubles
    assert trouble.why == "rank 1 on node-0 ended with exit code 1: KeyError: 'weight'"
    assert "rank.py" in trouble.evidence
    assert "template.py" not in group.text()


THREAD = """
import threading, time
threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
"""


@pytest.mark.parametrize(
    ("module", "why"),
    [(THREAD, "Python threads"), ("raise ValueError('no driver')", "during its imports")],
)
def test_what_must_not_be_forked_is_not(
    start: Start, tmp_path: Path, module: str, why: str
) -> None:
    group = warm(start, tmp_path, "", module=module, nodes=1)
    assert group.wait() == [0]
    assert "no warm starts: " in group.text()
    assert why in group.text()
    assert [warmth(group, rank, 0)[1] for rank in range(2)] == [group.processes[0].pid] * 2


def test_a_killed_template_takes_its_ranks_along_and_another_one_follows(
    start: Start, tmp_path: Path
) -> None:
    group = warm(start, tmp_path, "wait()", nodes=1)
    all_wait(group, ranks=2)
    template = warmth(group, 0, 0)[1]
    assert template != group.processes[0].pid
    os.kill(template, signal.SIGKILL)
    all_wait(group, ranks=2, count=1)
    assert warmth(group, 0, 1)[1] not in (template, group.processes[0].pid)
    (group.save / "go").touch()
    assert group.wait() == [0]
    assert until_gone(group) == []


def test_a_killed_launcher_takes_template_and_warm_ranks_along(
    start: Start, tmp_path: Path
) -> None:
    group = warm(start, tmp_path, "wait()")
    all_wait(group)
    for each in group.processes:
        each.kill()
    assert until_gone(group) == []


def test_a_module_is_run_as_main_too(tmp_path: Path) -> None:
    package = tmp_path / "modules/pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "near.py").write_text("word = 'near'")
    (package / "__main__.py").write_text(
        RANK + "from .near import word\nput(f'said-{rank}', json.dumps(\n"
        "    [word, __name__, __package__, sys.argv[1:], os.getppid()]))\n"
    )
    path = f"{tmp_path / 'modules'}:{ROOT}"
    group = Launchers(
        tmp_path / "group", ["-m", "pkg", "--lr", "1"], nodes=1, options=["--warm-import=json"],
        PYTHONPATH=path,
    )  # fmt: skip
    try:
        assert group.wait() == [0]
        for rank in range(2):
            *said, parent = json.loads((group.save / f"said-{rank}").read_text())
            assert said == ["near", "__main__", "pkg", ["--lr", "1"]]
            assert parent != group.processes[0].pid
    finally:
        group.close()
