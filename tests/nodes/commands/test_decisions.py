"""`hpctl approve` and `cancel`: what they would do, and who is asked before they do it."""

import json

import pytest

from hpctl.toolkit import output
from tests.nodes.commands.test_requests import asked

pytestmark = pytest.mark.integration

APPROVE = ("approve", "ip-10-1-0-5")
CANCEL = ("cancel", "ip-10-1-0-4")


@pytest.fixture
def questions(history, monkeypatch):
    """The questions that a person at a terminal is asked; the answer is `answer[0]`."""
    found: list[str] = []
    answer = [True]

    def confirm(question: str, *, abort: bool = False) -> bool:
        found.append(question)
        if not answer[0] and abort:
            raise output.click.Abort
        return answer[0]

    monkeypatch.setattr("hpctl.nodes.decisions_command.sys", Terminal())
    monkeypatch.setattr(output, "confirm", confirm)
    return found, answer


class Terminal:
    """A `sys` whose standard input is a terminal."""

    @property
    def stdin(self):
        return self

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("words", [APPROVE, CANCEL])
def test_a_dry_run_asks_the_daemon_for_nothing(history, words):
    result = history.run(*words, "--dry-run")
    assert (result.exit_code, asked(history)) == (0, []), result.output
    assert result.stdout.endswith("\nDry run: nothing was done.\n")


def test_a_dry_run_names_the_recovery_the_node_and_its_jobs(history):
    (held,) = json.loads(history.run(*APPROVE, "--dry-run", "--json").stdout)["decisions"]
    assert (held["target"], held["recovery"]) == ("ip-10-1-0-5", "")
    assert "xid-79" in held["will"]
    assert "the gate budget lets it pass" in held["will"]
    (job,) = held["jobs"]
    assert job.startswith("job 4444 (notebook, dan), RUNNING on 1 node(s): is waited for")
    (ended,) = json.loads(history.run(*CANCEL, "--dry-run", "--json").stdout)["decisions"]
    assert (ended["target"], ended["recovery"]) == ("ip-10-1-0-4", "n-44444444")
    assert "`hpctl undrain ip-10-1-0-4` gives it back" in ended["will"]
    (job,) = json.loads(history.run("cancel", "4343", "--dry-run", "--json").stdout)["decisions"]
    assert (job["target"], job["recovery"]) == ("job 4343", "j-55555555")


def test_without_slurm_a_dry_run_says_that_the_jobs_are_not_known(history):
    history.slurm = None
    result = history.run(*APPROVE, "--dry-run")
    assert result.exit_code == 0
    assert "jobs on the nodes are not known: it does not answer" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("words", "question"), [(APPROVE, "approve ip-10-1-0-5?"), (CANCEL, "cancel ip-10-1-0-4?")]
)
def test_at_a_terminal_a_person_is_asked_and_reads_what_happens(
    history, questions, words, question
):
    found, answer = questions
    answer[0] = False
    refused = history.run(*words, "--no-wait")
    assert (refused.exit_code, asked(history), found) == (1, [], [question])
    assert "ip-10-1-0" in refused.stderr
    answer[0] = True
    assert history.run(*words, "--no-wait").exit_code == 0
    assert len(asked(history)) == 1


def test_yes_and_a_script_are_not_asked(history, questions, monkeypatch):
    found, _ = questions
    assert history.run(*APPROVE, "--yes", "--no-wait").exit_code == 0
    monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    assert history.run(*CANCEL, "--no-wait").exit_code == 0
    assert (found, len(asked(history))) == ([], 2)
