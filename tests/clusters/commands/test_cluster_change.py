"""What the commands that change a cluster show, letter by letter."""

import io
from datetime import datetime, timedelta

import pytest
from msgspec.structs import replace
from rich.console import Console
from rich.live import Live

from hpctl.clusters.commands import change_view as screen
from hpctl.clusters.commands.change_view import (
    ApiCallView,
    ClusterChangeView,
    NodeRemovalView,
    select_wait_result_fields,
)
from hpctl.clusters.diff import SpecChange, SpecChangeKind
from hpctl.clusters.progress import (
    ClusterProgress,
    ClusterProgressEvent,
    ClusterWaitState,
    InstanceGroupProgress,
    NodeProgress,
)
from hpctl.sagemaker.failure_causes import (
    InstancePlacement,
    NodeFailureCause,
    NodeFailureKind,
    explain_node_failure,
)
from hpctl.sandbox.emulator.launch import LIFECYCLE, NO_CAPACITY
from hpctl.toolkit import output
from hpctl.toolkit.compat import UTC
from tests.cli.test_golden import compare
from tests.cli.test_json_contract import holds

pytestmark = pytest.mark.integration

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ARN = "arn:aws:sagemaker:us-west-2:000000000000:cluster/abcdefghijkl"
LOG = "/aws/sagemaker/Clusters/llm-prod/abcdefghijkl LifecycleConfig/h100/i-00000000000000002"

GROUPS = (
    InstanceGroupProgress("controller", ("ml.m5.xlarge",), "InService", 1, 1),
    InstanceGroupProgress("h100", ("ml.p5.48xlarge", "ml.p5en.48xlarge"), "Degraded", 13, 16),
)
SCRIPT = NodeProgress(
    "h100", "i-00000000000000002", "node-1", "ip-10-1-0-2", "Failure", LIFECYCLE, NOW,
    NodeFailureCause(
        NodeFailureKind.LIFECYCLE, explain_node_failure(LIFECYCLE).meaning,
        explain_node_failure(LIFECYCLE).fix, step="mount_fsx",
        line="hpctl lifecycle: FAILED step=mount_fsx node=ip-10-1-0-2 after 3 tries: no route",
        log=LOG,
    ),
)  # fmt: skip
SHORT = NodeProgress(
    "h100", "", "node-2", "", "Pending", NO_CAPACITY, NOW,
    explain_node_failure(
        NO_CAPACITY, InstancePlacement(GROUPS[1].instance_types,
        {"subnet-0aaaaaaaaaaaaaaaa": "us-west-2a"})
    ),
)  # fmt: skip
COMING = NodeProgress("h100", "i-00000000000000003", "node-3", "ip-10-1-0-3", "Pending", "", NOW)
EVENT = ClusterProgressEvent(NOW, "Error", "Instance could not be launched.", "h100")
LOOK = ClusterProgress(
    "llm-prod", "InService", NOW, arn=ARN, groups=GROUPS, nodes=(SCRIPT, SHORT, COMING),
    failures=(SCRIPT, SHORT), events=(EVENT,), waited_s=725.0,
)  # fmt: skip
CHANGES = (
    SpecChange(
        SpecChangeKind.CHANGE, "NodeRecovery", "Automatic", "None", "a person, or hpctl, does"
    ),
    SpecChange(
        SpecChangeKind.ADD, "h100.InstanceCount", 16, 20, "4 instance(s) are made, and paid for"
    ),
    SpecChange(SpecChangeKind.CHANGE, "h100.MinInstanceCount", 12, None, ""),
    SpecChange(
        SpecChangeKind.DESTROY,
        "old",
        "2 x ml.g5.48xlarge",
        None,
        "the group and its 2 instance(s) go",
    ),
    SpecChange(
        SpecChangeKind.IMPOSSIBLE, "h100.ThreadsPerCore", 1, 2, "a group keeps its threads per core"
    ),
)
GONE = (
    NodeRemovalView(
        "ip-10-1-0-9", "i-00000000000000009", "node-9", "h100", "idle", (), "done", "deleted"
    ),
    NodeRemovalView(
        "ip-10-1-0-8", "i-00000000000000008", "node-8", "h100", "2 job(s) run there", (4242, 4243),
        "refused", "Another operation (Replace) is in progress for this node.", "NodeIdInUse",
        "another operation works on it: wait for that",
    ),
    NodeRemovalView("", "", "node-7", "h100", "no instance yet", (), "left", "ordered"),
)  # fmt: skip


def view(command: str, outcome: str, **more) -> ClusterChangeView:
    return ClusterChangeView(
        NOW,
        command,
        "llm-prod",
        **{"pick_up": "hpctl cluster wait llm-prod", "outcome": outcome, **more},
    )


FAILED = replace(LOOK, verdict=ClusterWaitState.FAILED, why="2 node(s) did not come up")
CALL = ApiCallView("CreateCluster", {"ClusterName": "llm-prod"})
VIEWS = {
    "create-failed": view("create", **select_wait_result_fields(FAILED)),
    "update-impossible": view("update", "failed", why="nothing was done", changes=CHANGES),
    "scale-refused": view(
        "scale", "failed", why="1 of 3 node(s) did not go", removals=GONE, orders=(CALL,)
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_the_end_of_a_change_is_as_before(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(VIEWS[name], capsys)
    compare(f"cluster-change-{name}.txt", text)
    assert all(len(line) <= 80 for line in text.splitlines())


def test_the_live_screen_is_never_higher_than_the_terminal():
    many = replace(LOOK, failures=tuple(replace(SCRIPT, message=f"no {n}") for n in range(9)))
    for height, text in ((64, "4 node(s) failed otherwise"), (24, "otherwise"), (10, "9 node(s)")):
        console = Console(file=io.StringIO(), width=80, height=height)
        live = Live(console=console)
        screen.LiveClusterProgressScreen(live).show(many)
        lines = console.render_lines(live.renderable, pad=False)
        assert len(lines) < height
        assert any(text in segment.text for line in lines for segment in line)


def shown(one: ClusterChangeView, capsys) -> str:
    output.show_view("cluster-change", one, False)
    return capsys.readouterr().out


def test_a_code_that_the_words_end_with_is_not_said_twice(capsys):
    gone = replace(GONE[1], text="Node not found (ValidationException)", code="ValidationException")
    text = shown(view("scale", "failed", removals=(gone,)), capsys)
    assert text.count("ValidationException") == 1


def test_nodes_that_failed_alike_are_reported_once(capsys):
    """What a log says of another node's name is the same; a log that was not read says nothing."""
    other = SCRIPT.trouble.line.replace("ip-10-1-0-2", "ip-10-1-0-4")
    same = replace(SCRIPT, node="ip-10-1-0-4", trouble=replace(SCRIPT.trouble, line=other))
    unread = replace(SCRIPT, node="ip-10-1-0-5", trouble=None)
    look = replace(LOOK, failures=(SCRIPT, SHORT, same, unread))
    text = shown(view("create", **select_wait_result_fields(look)), capsys)
    assert text.count("log: hpctl lifecycle: FAILED") == 1
    assert "so did ip-10-1-0-4, ip-10-1-0-5" in text
    assert "means: AWS has none of" in text


def test_lines_are_written_when_something_changes_and_once_a_minute(capsys):
    lines = screen.LineClusterProgressScreen()
    calm = replace(LOOK, events=(), waited_s=0.0)
    for seconds, look in [(0, LOOK), (10, calm), (20, calm), (61, calm)]:
        moment = NOW + timedelta(seconds=seconds)
        lines.show(replace(look, at=moment, waited_s=float(seconds)))
    moment = NOW + timedelta(seconds=70)
    lines.show(replace(calm, at=moment, waited_s=70.0, unread="no answer from the endpoint"))
    compare("cluster-progress-lines.txt", capsys.readouterr().err)


def test_the_json_is_as_before_and_as_documented():
    answer = {name: output.format_view_json("cluster-change", one) for name, one in VIEWS.items()}
    compare("cluster-change.json", answer["create-failed"] + "\n")
    holds("cluster-change", *answer.values())
