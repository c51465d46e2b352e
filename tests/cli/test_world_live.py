"""The read commands beside a real daemon: its world and the one computed offline look the same."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hpctl.engine.world_wire import get_world_socket_path
from tests.live import Live, until
from tests.process import run_text

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.timeout(300)]

QUICK = {"cluster": {"busy_poll_s": 0.3, "poll_s": 1.0}, "loop": {"reconcile_s": 1.0}}
OF_A_MOMENT = {
    "as_of", "slurm_as_of", "cloud_as_of", "heartbeat", "last_cycle_s", "last_heard",
    "oldest_report", "newest_report",
}  # fmt: skip
"""Keys whose values differ between any two looks."""


def run(live: Live, *words: str) -> tuple[int, str, str]:
    """A command as an operator runs it: its exit code, output and errors."""
    config = {"HPCTL_CONFIG": str(live.sandbox.config_path)}
    env = {**os.environ, **live.sandbox.env, **config}
    done = run_text([sys.executable, "-m", "hpctl", *words], env=env)
    return done.returncode, done.stdout, done.stderr


def lasting(value: Any) -> Any:
    """A JSON value without what changes from look to look."""
    if isinstance(value, dict):
        return {k: lasting(v) for k, v in value.items() if k not in OF_A_MOMENT}
    return [lasting(v) for v in value] if isinstance(value, list) else value


def shown(live: Live, *words: str) -> tuple[int, Any, str]:
    code, out, err = run(live, *words, "--json")
    return code, lasting(json.loads(out)), err


def test_a_daemons_world_and_the_offline_one_look_the_same(sandbox_factory) -> None:
    live = Live(sandbox_factory(nodes=3, daemon=True, mode="observe", config=QUICK))
    sick, well = live.sandbox.nodes[0], live.sandbox.nodes[1]
    live.submit("sleep 600", f"--nodelist={well}")
    live.sandbox.inject(sick, "xid", code=79)
    until(lambda: sick in live.state().holds, 30, "the node is held")
    until(lambda: all_reported(live), 30, "all agents have reported and Slurm shows the job")
    socket = get_world_socket_path(Path(live.config.state_dir))
    away = socket.with_suffix(".away")
    commands = (
        ("status",), ("nodes",), ("explain", sick), ("explain", well), ("recoveries",), ("jobs",),
    )  # fmt: skip
    for words in commands:
        online = shown(live, *words)
        socket.rename(away)
        try:
            offline = shown(live, *words)
        finally:
            away.rename(socket)
        assert online[:2] == offline[:2], words
        assert online[2] == "", "the daemon's own decision needs no note"
        if words[0] == "explain":
            assert "the daemon's decisions cannot be read" in offline[2]
    code, story, _ = shown(live, "explain", sick)
    assert (code, story["kind"], story["gates"][-1]["name"]) == (0, "hold", "observing")

    live.sandbox.kill_daemon()
    until(
        lambda: (
            "no daemon is running; this is what a daemon would decide"
            in run(live, "explain", sick)[2]
        ),
        60,
        "the lease has run out",
    )
    code, out, _ = run(live, "status")
    assert code in (1, 3)
    assert "has been silent for" in out


def all_reported(live: Live) -> bool:
    _, view, _ = shown(live, "nodes")
    nodes = view["nodes"]
    busy = sum(node["slurm_state"] in ("MIXED", "ALLOCATED") for node in nodes)
    return busy == 1 and all(node["instance_status"] == "Running" for node in nodes)


def test_what_was_ordered_is_seen_at_once(sandbox_factory) -> None:
    """The request is answered in the middle of a cycle; the next look shows what it did."""
    live = Live(sandbox_factory(nodes=1, daemon=True, mode="observe"))
    for _ in range(5):
        assert run(live, "pause")[0] == 0
        assert shown(live, "status")[1]["paused_by"]
        assert run(live, "unpause")[0] == 0
        assert not shown(live, "status")[1]["paused_by"]
