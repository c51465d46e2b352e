"""Operators without rights in Slurm: they order by hpctl what `access.group` lets them."""

import grp
import pwd
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import pytest

from tests.daemon.chaos import Chaos, cluster
from tests.live import ROOT, until
from tests.process import become_ordinary_user
from tests.repertoire.network import NEEDS_ROOT
from tests.repertoire.stories import story

pytestmark = [pytest.mark.slurm, pytest.mark.integration, pytest.mark.nightly, NEEDS_ROOT]
USER: Final = pwd.getpwnam("daemon")
GROUP: Final = grp.getgrgid(USER.pw_gid).gr_name
REFUSALS: Final = ("Invalid user id", "Access/permission denied")
"""What scontrol prints, by release."""
ORDERS: Final = ("replace", "reboot", "undrain")


@pytest.fixture(scope="module")
def live() -> Iterator[Chaos]:
    with cluster(nodes=2) as live:
        yield live


def run_as_user(live: Chaos, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the head node as a user who has no rights in Slurm."""
    words = [*become_ordinary_user(), *command]
    return live.sandbox.run(words, check=False, env={"PYTHONPATH": ROOT}, cwd="/")


def order(live: Chaos, verb: str, node: str) -> subprocess.CompletedProcess[str]:
    sure = [] if verb == "undrain" else ["--yes", "--now"]
    return run_as_user(live, sys.executable, "-P", "-m", "hpctl", verb, node, *sure)


def refuse_in_slurm(live: Chaos, node: str) -> None:
    """Have slurmctld refuse the user the drain of a node."""
    settings = ["State=DRAIN", "Reason=mine"]
    done = run_as_user(live, "scontrol", "update", f"NodeName={node}", *settings)
    assert done.returncode != 0
    assert any(words in done.stderr for words in REFUSALS), done.stderr


@pytest.mark.parametrize("verb", ORDERS)
@story(
    job="Node in service",
    act="a user who is no operator runs `hpctl replace`, `reboot` or `undrain`",
    slurm="The node serves on; nothing is done to it.",
    explain="The command says who may ask, and has exit code 1.",
)
def test_an_order_of_a_user_is_refused(live: Chaos, verb: str) -> None:
    (node,) = live.victims(1)
    live.mark(node)
    refuse_in_slurm(live, node)
    done = order(live, verb, node)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"{USER.pw_name} may not ask to {verb}" in " ".join(done.stderr.split())
    assert "access.group" in done.stderr
    assert live.of(node) == []
    assert live.node(node).in_service


@story(
    job="Node in service",
    act="a member of `access.group`, whom slurmctld refuses `scontrol update`, runs"
    " `hpctl replace --now`",
    slurm="The node is drained, replaced, and serves again: the daemon acts in its own name.",
    explain="Who asked for it.",
)
def test_an_operator_needs_no_rights_in_slurm(live: Chaos) -> None:
    live.reconfigure(access={"group": GROUP})
    (node,) = live.victims(1)
    live.mark(node)
    instance = live.instance(node)
    refuse_in_slurm(live, node)
    done = order(live, "replace", node)
    # 3: on a slow machine no copy of the journal has the answer in time.
    assert done.returncode in (0, 3), done.stdout + done.stderr
    recovery = live.returned(node)
    assert recovery.by == USER.pw_name
    assert live.accepted(instance) == 1
    assert USER.pw_name in live.explained(node)
    live.reconfigure()
    until(lambda: live.node(node).in_service, 60, "the node serves")
