"""A broad except hides bugs. Each one is argued for beside it and counted here.

One that ends in a bare `raise` hides nothing: it cleans up and lets the error through.
"""

import ast
import re
from collections import Counter

from tests.architecture.source import python_files, text, tree

ALLOWED = {
    "hpctl/detection/outside/local_server.py": 1,
    "hpctl/detection/runner.py": 1,
    "hpctl/clusters/request.py": 1,
    "hpctl/vocabulary/isolation.py": 2,
    "hpctl/service/intake/process.py": 2,
    "hpctl/daemon/cycle.py": 1,
    "hpctl/engine/cloud_watch.py": 1,
    "hpctl/engine/preemption_watch.py": 1,
    "hpctl/engine/world_server.py": 2,
    "hpctl/service/page/follow.py": 1,
    "hpctl/jobs/elastic/controller.py": 1,
    "hpctl/jobs/hangs/flight_files.py": 1,
    "hpctl/jobs/run/script_end.py": 1,
    "hpctl/jobs/run/supervise.py": 1,
    "hpctl/wire/job_report_client.py": 1,
    "hpctl/progress.py": 1,
    "hpctl/sandbox/emulator/launch.py": 3,
}


def is_broad(handler: ast.ExceptHandler) -> bool:
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds
    )


def lets_through(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def broad_excepts():
    return [
        (path, node.lineno)
        for path in python_files("hpctl")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ExceptHandler) and is_broad(node) and not lets_through(node)
    ]


def test_the_broad_excepts_are_exactly_those_that_were_argued_for() -> None:
    assert Counter(str(path) for path, _ in broad_excepts()) == ALLOWED


def test_every_broad_except_has_its_reason_beside_it() -> None:
    unargued = []
    for path, line in broad_excepts():
        beside = "\n".join(text(path).splitlines()[line - 2 : line + 1])
        reasons = re.findall(r"#(?! noqa) *\w|# noqa: BLE001 -- \w", beside)
        if not reasons:
            unargued.append(f"{path}:{line}")
    assert unargued == []
