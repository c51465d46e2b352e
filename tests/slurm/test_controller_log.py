"""slurmctld's log: what its lines mean, which file is followed, and following it."""

from pathlib import Path

import pytest

from hpctl.slurm.controller_log import (
    LONGEST_LINE,
    MOST_AT_ONCE,
    SlurmctldLogFollower,
    choose_slurmctld_log_file,
    classify_slurmctld_log_line,
)
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.controller_news import SlurmctldLogEvent

NONE, JOB, NODE = SlurmctldLogEvent
AT = "[2026-11-27T18:12:09.708] "


@pytest.mark.parametrize(
    ("line", "news"),
    [
        # Seen on 22.05.8.
        ("update_node: node ip-127-0-1-1 reason set to: Action:Replace", NODE),
        ("update_node: node ip-127-0-1-1 state set to FAIL", NODE),
        ("Node ip-127-0-1-1 now responding", NODE),
        ("error: Nodes n[1-2] not responding, setting DOWN", NODE),
        ("drain_nodes: node n1 state set to DRAIN", NODE),
        ("slurmctld version 22.05.8 started on cluster a", NODE),
        ("_slurm_rpc_reconfigure_controller: completed usec=1288", NODE),
        ("_job_complete: JobId=1 WEXITSTATUS 3", JOB),
        ("_job_complete: JobId=7_2(9) WTERMSIG 9", JOB),
        ("_job_complete: JobId=1 OOM failure", JOB),
        ("requeue job JobId=4 due to failure of node n1", NODE),
        ("_slurm_rpc_requeue: 4: usec=210", JOB),
        ("Time limit exhausted for JobId=4", JOB),
        ("_job_complete: JobId=1 WEXITSTATUS 0", JOB),
        ("_job_complete: JobId=1 done", JOB),
        ("_slurm_rpc_submit_batch_job: JobId=1 InitPrio=4294901759 usec=354", JOB),
        ("sched: Allocate JobId=1 NodeList=ip-127-0-1-1 #CPUs=1 Partition=dev", JOB),
        ("SchedulerParameters=default_queue_depth=100,max_rpc_cnt=0", NONE),
        ("debug:  Spawning ping agent for node n1", NONE),
        ("debug2: node_did_resp n1", NONE),
        ("", NONE),
    ],
)
def test_what_a_line_means(line: str, news: SlurmctldLogEvent):
    assert classify_slurmctld_log_line((AT + line).encode()) is news


LOCAL = {
    "SlurmctldHost[0]": "head(10.1.2.3)",
    "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
    "SlurmctldDebug": "info",
}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, ""),
        ({"SlurmctldHost[0]": "HEAD"}, ""),
        ({"SlurmctldHost[0]": "vm(127.0.0.1)"}, ""),
        ({"SlurmctldHost[0]": "spare(10.1.2.4)", "SlurmctldHost[1]": "head(10.1.2.3)"}, ""),
        ({"SlurmctldDebug": "debug2"}, ""),
        ({"SlurmctldHost[0]": "other(10.1.2.4)"}, "slurmctld runs on other(10.1.2.4)"),
        ({"SlurmctldDebug": "error"}, "SlurmctldDebug=error"),
        ({"SlurmctldLogFile": "(null)"}, "SlurmctldLogFile names no file"),
    ],
)
def test_which_log_is_followed(changed, why):
    path, said = choose_slurmctld_log_file(LOCAL | changed, "head.example")
    assert (path is None) is bool(why)
    assert said.startswith(why)


class Head:
    """A head node with a log."""

    def __init__(self, place: Path) -> None:
        self.path = place / "slurmctld.log"
        self.path.write_text(f"{AT}update_node: node n1 state set to DOWN\n")
        self.config = LOCAL | {"SlurmctldLogFile": str(self.path)}
        self.active = True
        self.away = False
        self.log = SlurmctldLogFollower(self.show_config, lambda: self.active, lambda: "head")

    def show_config(self) -> dict[str, str]:
        if self.away:
            raise ServiceUnavailable("slurmctld does not answer")
        return self.config

    def write(self, text: str) -> None:
        with self.path.open("a") as log:
            log.write(text)


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


DOWN, STARTED = f"{AT}update_node: node n1 state set to DOWN\n", f"{AT}Allocate JobId=1\n"


def test_what_was_written_before_is_no_news_and_what_is_written_since_is_news_once(head):
    assert not head.log.is_following
    assert head.log.read() is NONE
    assert head.log.open() == ""
    assert head.log.is_following
    assert head.log.read() is NONE
    head.write(STARTED + DOWN)
    assert head.log.read() is NODE
    assert head.log.read() is NONE


def test_half_a_line_is_read_when_it_is_whole(head):
    head.log.open()
    head.write(DOWN[:40])
    assert head.log.read() is NONE
    head.write(DOWN[40:])
    assert head.log.read() is NODE


@pytest.mark.parametrize("cut", [False, True], ids=["moved", "cut"])
def test_a_rotated_log_is_news_and_followed_on(head, cut):
    head.log.open()
    head.write(STARTED)
    assert head.log.read() is JOB
    if cut:
        head.path.write_text("")
    else:
        head.path.rename(head.path.with_suffix(".1"))
        assert head.log.read() is NONE, "there is no new file yet"
        head.path.write_text("")
    assert head.log.read() is NODE
    assert head.log.read() is NONE
    head.write(DOWN)
    assert head.log.read() is NODE


@pytest.mark.parametrize("text", ["x" * (MOST_AT_ONCE + 9), "x" * (LONGEST_LINE + 1)])
def test_more_than_is_read_at_once_is_news(head, text):
    head.log.open()
    head.write(text)
    assert head.log.read() is NODE
    head.write("\n")
    assert head.log.read() is NONE


def test_nodes_that_go_on_not_to_respond_are_news_once(head):
    head.log.open()
    for nodes, news in (("n1", NODE), ("n1", NONE), ("n[1-2]", NODE), ("n[1-2]", NONE)):
        head.write(f"{AT}error: Nodes {nodes} not responding\n")
        assert head.log.read() is news


def test_a_slurmctld_that_restarts_is_asked_again_for_its_log(head):
    head.log.open()
    head.write(f"{AT}slurmctld version 25.11.2 started on cluster a\n")
    assert head.log.read() is NODE
    assert not head.log.is_following, "it may log elsewhere by now"
    assert head.log.open() == ""
    assert head.log.is_following


def test_of_several_controllers_the_active_one_is_followed(head):
    head.config["SlurmctldHost[1]"] = "spare(10.1.2.4)"
    head.active = False
    assert "several controllers" in head.log.open()
    head.active = True
    assert head.log.open() == ""
    assert head.log.is_following
    head.active = False
    assert not head.log.is_following


def test_a_log_that_cannot_be_had_is_not_followed(head):
    head.away = True
    assert head.log.open() == "slurmctld does not answer"
    head.away = False
    head.path.unlink()
    assert "cannot be read" in head.log.open()
    assert not head.log.is_following
