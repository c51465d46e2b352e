"""Which nodes of a job must not have a step, and what becomes of the job."""

import json

import pytest

from hpctl.nodes.acceptance import preflight
from hpctl.nodes.acceptance.result import AcceptanceTestResult, make_test_result_json
from hpctl.nodes.acceptance.run import (
    format_failed_node_reasons,
    run_acceptance_tests_on_nodes,
    select_forwarded_environment_variables,
)
from hpctl.slurm.run import CommandEndKind, CommandResult
from hpctl.vocabulary.identity import NodeName
from hpctl.wire.job_report_client import JobReportReply

NODES = tuple(NodeName(f"n{n}") for n in range(1, 9))


class Srun:
    """Answers like srun and scontrol."""

    def __init__(self, *lines: str, ok: bool = True) -> None:
        self.out, self.ok, self.called = "\n".join(lines).encode(), ok, []

    def run(self, name, *args, **how):
        self.called.append((name, *args))
        return CommandResult(
            (name,), CommandEndKind.EXITED, 0 if self.ok else 1, self.out, "srun: error", 0.1
        )


def passed(figure: float = 100.0) -> tuple[AcceptanceTestResult, ...]:
    return (AcceptanceTestResult("gpu.speed", "Passed", figures={"bf16_tflops": figure}),)


def test_a_node_is_bad_that_fails_is_silent_or_is_slow_beside_the_others() -> None:
    found = {node: passed(100 + n / 10) for n, node in enumerate(NODES)}
    found[NODES[2]] = (
        *passed(),
        AcceptanceTestResult("disk", "Failed", "reboot", "slow"),
        AcceptanceTestResult("x", "Failed"),
    )
    found[NODES[5]] = passed(88.0)
    del found[NODES[7]]
    bad = preflight.find_nodes_failing_preflight(NODES, found)
    assert (list(bad), bad[NODES[2]]) == ([NODES[2], NODES[5], NODES[7]], "disk: slow; x: failed")
    assert "88 is under" in bad[NODES[5]]
    assert "reported no test result" in bad[NODES[7]]


@pytest.mark.parametrize(
    ("bad", "spares", "restart", "line", "said"),
    [
        (0, 0, 0, "go", "8 node(s) passed"),
        (2, 2, 0, "without n[1-2]", "spares take their places"),
        (2, 1, 0, "leave", "asking for other nodes"),
        (2, 1, 3, "go", "3 restarts have not helped"),
        (8, 8, 0, "go", "every node fails"),
    ],
)
def test_what_becomes_of_the_job(bad, spares, restart, line, said) -> None:
    found = preflight.decide_preflight_verdict(
        NODES, dict.fromkeys(NODES[:bad], "slow"), spares, restart
    )
    assert found[0] == line
    assert said in found[1]


def test_where_no_test_can_run_or_no_requeue_is_to_be_had_the_job_goes_ahead(
    monkeypatch, capsys
) -> None:
    environ = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    monkeypatch.setattr(preflight, "SlurmCommandRunner", lambda: Srun(ok=False))
    assert preflight.main("quick", environ) == "go"
    assert "no test could be run, going ahead: srun: error" in capsys.readouterr().err
    bad = json.dumps(make_test_result_json("n1", AcceptanceTestResult("disk", "Failed")))
    srun = Srun(
        bad,
        json.dumps(make_test_result_json("n2", AcceptanceTestResult("disk", "Passed"))),
        ok=False,
    )
    monkeypatch.setattr(preflight, "SlurmCommandRunner", lambda: srun)
    monkeypatch.setattr(preflight, "send_job_report", lambda *_, **__: JobReportReply(False))
    assert preflight.main("quick", environ) == "go"
    assert srun.called[-1] == ("scontrol", "requeue", "7")
    assert "it was not requeued: srun: error" in capsys.readouterr().err


def test_what_a_step_prints_is_believed_only_about_its_nodes_and_bounded() -> None:
    lines = [
        "noise",
        '{"host": 1}',
        '{"host"' * 9,
        json.dumps(make_test_result_json("n9", AcceptanceTestResult("disk", "Failed"))),
        json.dumps(
            make_test_result_json("n1", AcceptanceTestResult("disk", "Failed", reason="\x1b[2J"))
        ),
    ]
    found, said = run_acceptance_tests_on_nodes(Srun(*lines), NODES[:2], "quick", 1.0)
    assert found == {"n1": (AcceptanceTestResult("disk", "Failed", reason="\ufffd[2J"),)}
    assert (said, select_forwarded_environment_variables({"HPCTL_A": "1", "SLURM_X": "2"})) == (
        "",
        {"HPCTL_A": "1"},
    )
    assert format_failed_node_reasons(dict.fromkeys(NODES, "w")).endswith(", 4 more")
