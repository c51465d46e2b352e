"""What decides does so from its arguments alone: no clock, no I/O, no logging, no randomness."""

import ast

from tests.architecture.source import imports, python_files, tree

BANNED_MODULES = {
    "asyncio", "io", "logging", "multiprocessing", "os", "pathlib", "random", "secrets",
    "select", "shutil", "signal", "socket", "sqlite3", "subprocess", "sys", "tempfile",
    "threading", "time", "urllib", "uuid",
}  # fmt: skip
BANNED_CALLS = {
    "__import__", "date.today", "datetime.now", "datetime.today", "datetime.utcnow", "eval",
    "exec", "hash", "input", "open", "print",
}  # fmt: skip


PURE = (
    "hpctl/vocabulary", "hpctl/faults", "hpctl/engine/plan.py", "hpctl/engine/gates.py",
    "hpctl/engine/advance.py", "hpctl/engine/view.py", "hpctl/engine/kinds.py",
    "hpctl/engine/requests.py", "hpctl/engine/retire.py", "hpctl/engine/timeline.py",
    "hpctl/engine/journal/events.py", "hpctl/engine/journal/state.py",
    "hpctl/engine/node_history.py", "hpctl/engine/node_deadlines.py",
    "hpctl/engine/job_deadlines.py",
    "hpctl/engine/change_deadlines.py", "hpctl/engine/test_reservation.py",
    "hpctl/engine/preemption.py", "hpctl/engine/restart_time.py",
    "hpctl/engine/test_results.py", "hpctl/nodes/testing.py",
    "hpctl/nodes/before_remedy.py", "hpctl/nodes/evidence/decide.py",
    "hpctl/engine/nodes_view.py", "hpctl/nodes/acceptance/daemon.py",
    "hpctl/nodes/actors.py", "hpctl/nodes/advance.py", "hpctl/nodes/by_hand.py",
    "hpctl/nodes/culprit.py", "hpctl/clusters/node_order_plan.py",
    "hpctl/clusters/order_progress.py",
    "hpctl/nodes/facts.py", "hpctl/nodes/kind.py", "hpctl/nodes/acceptance/cards.py",
    "hpctl/nodes/acceptance/decide.py", "hpctl/nodes/acceptance/limits.py",
    "hpctl/jobs/advance.py", "hpctl/jobs/decide.py", "hpctl/jobs/facts.py", "hpctl/jobs/kind.py",
    "hpctl/jobs/plan.py", "hpctl/jobs/plan_hits.py", "hpctl/jobs/run_cases.py",
    "hpctl/jobs/readiness.py", "hpctl/jobs/run_failure.py", "hpctl/jobs/verdict.py",
    "hpctl/jobs/run_gates.py", "hpctl/jobs/hangs/decide.py", "hpctl/jobs/hangs/flight_recorder.py",
    "hpctl/jobs/hangs/stack_groups.py", "hpctl/capacity", "hpctl/insight/grey/decide.py",
    "hpctl/insight/forecast/decide.py", "hpctl/insight/forecast/history.py",
    "hpctl/insight/report/decide.py", "hpctl/service/notify/decide.py",
    "hpctl/service/notify/outbox.py",
)  # fmt: skip
"""Rooms and files that decide."""
IMPURE = {"hpctl/capacity/command.py", "hpctl/vocabulary/policy_file.py"}
"""In a pure room: a command, and the files that people write."""


def list_pure() -> list[str]:
    """Return the files that decide, relative to the root."""
    found = {str(path) for place in PURE for path in python_files(place)}
    return sorted(found - IMPURE)


def called(node: ast.Call) -> str:
    """The last one or two parts of the name that is called: `datetime.now`, `open`."""
    return ".".join(ast.unparse(node.func).split(".")[-2:])


def test_what_decides_opens_no_door_to_the_world_and_keeps_nothing_between_calls() -> None:
    files = [path for place in PURE for path in python_files(place) if str(path) not in IMPURE]
    assert all(python_files(place) for place in PURE), "a place that has moved"
    found = [
        f"{path}:{line} {name}"
        for path in files
        for line, name in imports(path)
        if name.split(".")[0] in BANNED_MODULES
    ]
    found += [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path in files
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Global | ast.Nonlocal)
        or (isinstance(node, ast.Call) and called(node) in BANNED_CALLS)
    ]
    assert found == []
