"""hpctl.client's calls: the command that they run, and the values that they return."""

import pytest

from hpctl.client import (
    ClientError,
    CommandFailedError,
    CommandNotFoundError,
    Job,
    RunTrouble,
    Trouble,
    checkpoints,
    explain,
    status,
    submit,
)
from tests.client.stub import Programs

ROW = {
    "path": "/c/step-2", "complete": None, "step": 2, "world_size": 1, "format": "dcp",
    "digests_checked": False, "claimed": True, "why": "cannot read", "fetched_from": "",
    "unproven": "",
}  # fmt: skip
TROUBLE = {
    "kind": "crash", "at": "2026-11-28T06:22:10Z", "why": "rank 1: ValueError", "signature": "x",
    "node": "n1", "rank": 1, "device": "", "exit_code": 1, "evidence": "", "step": None,
    "progress": None,
}  # fmt: skip
EXPLAINED = {
    "target": "17", "kind": "job_recovery", "headline": "Job 17 crashed.", "trouble": TROUBLE,
    "next": {"what": "nothing", "until": None, "otherwise": ""},
    "standstill": {"since": "2026-11-28T06:22:10Z", "why": "all wait on a futex"},
}  # fmt: skip


@pytest.fixture
def programs(tmp_path, monkeypatch) -> Programs:
    return Programs(tmp_path, monkeypatch)


def test_submit_passes_options_and_returns_the_job_with_what_was_said(programs):
    programs.hpctl.say("17;cluster\n", "hpctl: added --requeue\nhpctl: warning: a pipe\nother\n")
    job = submit("a.sh", "x", checkpoint_dir="/c", tier=["/d", "/e"], hold=True, nodes=2, qos=None)
    assert job == Job("17", ("added --requeue",), ("a pipe",))
    options = "--checkpoint-dir=/c --tier=/d --tier=/e --hold --nodes=2"
    assert programs.hpctl.calls == [f"sbatch --parsable {options} a.sh x"]


def test_a_command_is_wrapped_with_its_words_quoted(programs):
    programs.hpctl.say("17\n")
    submit(["srun", "python", "my train.py"], requeue=False)
    assert programs.hpctl.calls == ["sbatch --parsable --wrap=srun python 'my train.py'"]
    with pytest.raises(ClientError, match="Put them into the list"):
        submit(["srun"], "x")


def test_a_refusal_says_what_and_what_to_do(programs):
    programs.hpctl.say("", "hpctl: cannot read the script a.sh\n  Look at its path.\n", 2)
    with pytest.raises(CommandFailedError) as caught:
        submit("a.sh")
    assert caught.value.exit_code == 2
    assert "cannot read the script a.sh" in str(caught.value)
    assert caught.value.hint == "Look at its path."


def test_without_hpctl_the_error_says_where_to_run(programs, monkeypatch):
    monkeypatch.setenv("HPCTL_COMMAND", "/nowhere/hpctl")
    with pytest.raises(CommandNotFoundError, match="HPCTL_COMMAND=/nowhere/hpctl is no program"):
        status()


@pytest.mark.parametrize(
    ("problems", "unknowns", "code", "ok"),
    [([], [], 0, True), (["a"], ["b"], 1, False), ([], ["b"], 3, None)],
)
def test_status_is_an_answer_whatever_its_exit_code(programs, problems, unknowns, code, ok):
    document = {"cluster": "c", "mode": "own", "problems": problems, "unknowns": unknowns}
    programs.hpctl.say(document, code=code)
    assert status().ok is ok
    assert status().document == document
    assert programs.hpctl.calls[0] == "status --json"


def test_explain_returns_cause_and_standstill(programs):
    programs.hpctl.say(EXPLAINED)
    said = explain(Job("17"))
    assert (said.headline, said.next) == ("Job 17 crashed.", "nothing")
    assert isinstance(said.trouble, RunTrouble)
    assert (said.trouble.kind, said.trouble.node, said.trouble.rank) == ("crash", "n1", 1)
    assert said.standing_still == "all wait on a futex"
    assert programs.hpctl.calls == ["explain 17 --json"]


def test_trouble_stays_importable_under_its_earlier_name() -> None:
    assert Trouble is RunTrouble


def test_checkpoints_of_a_job_or_a_directory(programs):
    whole = {**ROW, "path": "/c/step-1", "step": 1, "complete": True}
    mark = {"by": "alice", "at": "2026-11-28T06:41:00Z", "why": "loss is NaN", "path": "/c/m.json"}
    poisoned = {**whole, "path": "/c/step-2", "step": 2, "mark": mark}
    programs.hpctl.say({"place": "/c", "checkpoints": [ROW, poisoned, whole], "why": ""}, code=1)
    found = checkpoints(17)
    assert found.all[1].marked == "by alice: loss is NaN"
    assert found.newest is not None
    assert found.newest.path == "/c/step-1"
    assert found.all[0].why == "cannot read"
    checkpoints("/c", files=["a_{step}.pt"])
    checkpoints(Job("17_2"))
    assert programs.hpctl.calls == [
        "checkpoint ls --job=17 --json",
        "checkpoint ls --checkpoint-files=a_{step}.pt /c --json",
        "checkpoint ls --job=17_2 --json",
    ]


def test_another_program_of_that_name_is_an_error(programs):
    programs.hpctl.say("usage: hpctl")
    with pytest.raises(ClientError, match="printed no JSON"):
        status()
