"""What `hpctl cluster` asks, refuses and leaves alone; the text itself is in the golden files."""

import io
import json
from datetime import datetime, timedelta
from io import StringIO

import pytest
from msgspec.structs import replace
from rich.console import Console

from hpctl.clusters.commands import context, ssh
from hpctl.clusters.commands.events import (
    ClusterEventLine,
    ClusterEventsView,
    fold_repeated_events,
    make_cluster_event_lines,
)
from hpctl.clusters.watch import ClusterEvent
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.view_drawing import draw_view

pytestmark = pytest.mark.integration


def ordered(head):
    return [operation for operation, _ in head.aws.sagemaker.ordered]


def test_states_and_groups_pick_rows(history):
    def names(*text: str) -> list[str]:
        shown = history.run("cluster", "instances", *text, "--json").stdout
        return [node["node"] for node in json.loads(shown)["nodes"]]

    assert names("--group", "head") == ["ip-10-1-0-250"]
    assert names("--state", "failure") == ["ip-10-1-0-10"]
    assert names("--state", "DOWN", "--state", "Failure") == ["ip-10-1-0-4", "ip-10-1-0-10"]
    assert names("--state", "faulty", "--group", "head") == []


def test_elsewhere_the_cluster_must_be_named_and_slurm_is_not_at_hand(history, monkeypatch):
    history.config.write_text(f"state_dir: {history.dir}\ncluster: {{provider: none}}\n")
    result = history.run("cluster", "instances")
    assert result.exit_code == 2
    assert "names no cluster" in result.stderr
    result = history.run("cluster", "instances", "--cluster", "llm-prod", width=200)
    assert result.exit_code == 0
    assert "neither Slurm nor hpctl's daemon is reachable" in result.stdout
    assert "SLURM" not in result.stdout
    monkeypatch.setenv("HPCTL_CLUSTER", "llm-prod")
    result = history.run("cluster", "replace", "ip-10-1-0-3", "--yes")
    assert isinstance(result.exception, HpctlError)
    assert "cannot see jobs or drain the nodes" in str(result.exception)
    result = history.run("cluster", "replace", "ip-10-1-0-3", "--yes", "--now", "--no-wait")
    assert result.exit_code == 0, result.output
    assert "what runs there is unknown, and would be lost" in result.stderr
    assert ordered(history) == ["batch_replace_cluster_nodes"]


def test_an_option_outweighs_the_head_nodes_file_and_that_the_environment(history, monkeypatch):
    history.config.write_text(
        f"state_dir: {history.dir}\n"
        "cluster: {name: llm-prod, region: us-west-2, endpoint_url: 'https://file'}\n"
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", "https://environment")
    monkeypatch.setattr(context, "make_aws_client_for_command", lambda *named: named)
    where = str(history.config)
    assert context.resolve_cluster_context(None, where, None, None, None).aws == (
        None,
        "us-west-2",
        "https://file",
    )
    named = context.resolve_cluster_context(
        "llm-prod", where, "p", "eu-west-1", "https://option"
    ).aws
    assert named == ("p", "eu-west-1", "https://option")
    # Of another cluster the file says nothing: boto3 then asks the environment.
    assert context.resolve_cluster_context("other", where, None, None, None).aws == (
        None,
        None,
        None,
    )


def test_nothing_is_ordered_before_a_person_agrees(history):
    for answer in ("", "n\n"):
        result = history.run("cluster", "replace", "ip-10-1-0-3", "--direct", stdin=answer)
        assert result.exit_code == 1
        asked = result.stderr.split("replace 1 node(s)?")[0].splitlines()
        assert any("job 4242 (train, alice) is RUNNING" in line for line in asked)
        assert all(line == line.rstrip() for line in asked)
    assert ordered(history) == []


class CtrlC(io.BytesIO):
    """A terminal at which somebody types Ctrl-C."""

    def read1(self, size: int | None = -1, /) -> bytes:
        """What the text layer above asks for."""
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "words", [("cluster", "replace", "ip-10-1-0-3"), ("replace", "ip-10-1-0-3")]
)
def test_ctrl_c_at_a_question_is_130_on_a_separate_line(history, words):
    result = history.run(*words, stdin=CtrlC())
    assert result.exit_code == 130, result.output
    assert result.stderr.endswith(": \nhpctl: interrupted, nothing was done\n")
    assert ordered(history) == []


@pytest.mark.parametrize("command", [("replace",), ("cluster", "replace")])
def test_with_slurm_silent_nothing_is_ordered(history, command):
    history.slurm = None
    result = history.run(*command, "ip-10-1-0-3", "--yes")
    text = f"{result.stderr} {result.exception}"
    assert "cannot see which jobs run on the nodes" in text
    assert ordered(history) == []


@pytest.mark.parametrize("command", [("replace",), ("cluster", "replace")])
@pytest.mark.parametrize(("now", "verb"), [((), "replace"), (("--now",), "replace-now")])
def test_both_replaces_wait_for_jobs_unless_now(history, command, now, verb):
    """Whatever runs there, the daemon that leads is asked for the same by both."""
    result = history.run(*command, "ip-10-1-0-3", "--yes", "--no-wait", *now)
    assert result.exit_code == 0, result.output
    fate = "will be requeued" if now else "is waited for; --now requeues it"
    assert f"is RUNNING on 2 node(s): {fate}" in " ".join(result.stderr.split())
    store = history.store()
    assert [(r.verb, r.target) for r in store.requests()] == [(verb, "ip-10-1-0-3")]
    store.close()
    assert ordered(history) == []


@pytest.mark.parametrize(
    ("lines", "result", "code"),
    [
        (None, "passed", 0),
        (["begun", "replacementRequired: false rebootRequired: false"], "passed", 0),
        (["replacementRequired: false rebootRequired: true", "bye"], "rebooted", 1),
    ],
)
def test_what_a_health_check_found_stands_in_the_nodes_log(history, lines, result, code):
    history.aws.logs.lines = lines
    args = ("health-check", "ip-10-1-0-3", "--every", "0.05s", "--yes", "--json")
    done = history.run("cluster", *args)
    assert done.exit_code == code, done.output
    (node,) = json.loads(done.stdout)["nodes"]
    assert node["result"] == result
    assert ("Required" in node["message"]) is (lines is not None)
    assert history.aws.logs.streams == [
        "/aws/sagemaker/Clusters/llm-prod/ab12cd34ef56 DeepHealthCheckResults/i-00000000000000003"
    ]


def test_what_an_earlier_health_check_found_is_no_result_of_this(history):
    history.aws.logs.lines = ["replacementRequired: false rebootRequired: true"]
    history.aws.logs.at -= timedelta(days=30)
    args = ("health-check", "ip-10-1-0-3", "--group", "worker-group-1", "--every", "0.05s")
    done = history.run("cluster", *args, "--yes", "--json")
    nodes = json.loads(done.stdout)["nodes"]
    assert "rebooted" not in {node["result"] for node in nodes}
    assert len(nodes) == len({node["instance_id"] for node in nodes})


@pytest.mark.parametrize("command", ["describe", "nodes"])
def test_a_failed_script_is_reported_with_its_step_and_where_the_rest_is(history, command):
    history.aws.sagemaker.failure = "Lifecycle scripts did not run successfully."
    line = "hpctl lifecycle: FAILED step=mount_fsx node=ip-10-1-0-10 after 3 tries: no route"
    history.aws.logs.lines = ["begun", line]
    text = history.run("cluster", command, width=200).stdout
    group, stream = "/aws/sagemaker/Clusters/llm-prod/ab12cd34ef56", "i-0fa11ed0000000010"
    assert f"log: {line}" in text
    assert f"rest: aws logs tail {group}" in text
    assert f"--log-stream-names LifecycleConfig/worker-group-1/{stream}" in text
    (node,) = json.loads(history.run("cluster", command, "--json").stdout)["failed_nodes"]
    assert (node["trouble"]["step"], node["trouble"]["line"]) == ("mount_fsx", line)
    history.aws.logs.lines = None
    text = history.run("cluster", command, width=200).stdout
    assert "log: the log has not reached CloudWatch Logs (yet)" in text


def test_a_busy_cluster_takes_no_long_order(history):
    history.aws.sagemaker.status = "Updating"
    result = history.run("cluster", "software-update", "--yes")
    assert isinstance(result.exception, HpctlError)
    assert "the cluster's status is Updating" in str(result.exception)
    result = history.run("cluster", "replace", "ip-10-1-0-2", "--yes", "--direct")
    assert result.exit_code == 1
    assert ordered(history) == []


def test_the_shell_is_named_by_the_clusters_id(history):
    result = history.run("cluster", "ssh", "10.1.0.3", "--print")
    assert result.stdout == (
        "aws ssm start-session --target"
        " sagemaker-cluster:ab12cd34ef56_worker-group-1-i-00000000000000003 --region us-west-2\n"
    )


def test_one_command_keeps_its_words(history):
    args = ("ssh", "head-1", "--print", "--profile", "ana", "--", "echo", "a b")
    result = history.run("cluster", *args)
    assert "--profile ana --document-name AWS-StartNonInteractiveCommand" in result.stdout
    text = ssh.build_ssm_session_command("t", region="r", command=("echo", "a b"))[-1]
    assert json.loads(text) == {"command": ["echo 'a b'"]}
    text = ssh.build_ssm_session_command("t", region="r", command=("echo $HOME | wc",))[-1]
    assert json.loads(text) == {"command": ["echo $HOME | wc"]}


def test_what_is_missing_is_reported_in_one_error(history, monkeypatch):
    started: list[list[str]] = []
    monkeypatch.setattr(ssh.os, "execvp", lambda _, text: started.append(text))
    monkeypatch.setattr(ssh.shutil, "which", lambda name: "/bin/aws" if name == "aws" else None)
    result = history.run("cluster", "ssh", "ip-10-1-0-3")
    assert isinstance(result.exception, HpctlError)
    assert "session-manager-plugin" in str(result.exception)
    assert "--print" in result.exception.hint
    assert started == []
    monkeypatch.setattr(ssh.shutil, "which", lambda name: f"/bin/{name}")
    assert history.run("cluster", "ssh", "ip-10-1-0-3").exit_code == 0
    assert started[0][:3] == ["aws", "ssm", "start-session"]


def drawn(view: ClusterEventsView, width: int) -> str:
    out = StringIO()
    draw_view(Console(file=out, width=width), view)
    return out.getvalue()


def test_a_failure_that_repeats_is_reported_once():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    one = ClusterEvent("e", at, "Error", "Instance", "h100", "i-1", "failed", failure="no disk")
    text = drawn(ClusterEventsView(at, "llm", (ClusterEventLine("", one),) * 3), 80)
    assert (text.count("no disk"), text.count("as above")) == (1, 2)


def test_a_node_that_is_tried_again_and_again_says_it_in_one_line():
    begun, text = datetime(2026, 1, 1, tzinfo=UTC), "script of EC2InstanceId {} has Failed"
    tries = []
    for n in range(40):
        gone, at = f"i-{n:017x}", begun + timedelta(minutes=n)
        one = ClusterEvent(f"a{n:02}", at, "Info", "Instance", "h100", gone, "Instance launched.")
        answer = {
            "id": f"b{n:02}", "level": "Error", "text": text.format(gone), "failure": "no disk",
        }  # fmt: skip
        tries += [one, replace(one, **answer)]
    other = replace(tries[1], id="c", group="a100", at=begun + timedelta(hours=2))
    message = make_cluster_event_lines([*tries, other], [])
    shown = fold_repeated_events(message)
    counts = [(line.count, len(line.instances), line.event.id) for line in shown]
    assert counts == [(40, 40, "a39"), (40, 40, "b39"), (1, 1, "c")]
    assert shown[0].first == begun
    said_ = drawn(ClusterEventsView(begun, "llm", shown, len(message)), 100)
    assert "40 times of 40 instances, first at 2026-01-01 00:00:00" in " ".join(said_.split())
    assert "81 events, repeats folded: --all shows each" in said_
