"""Tests on a node: what a command says, within bounds, and one file of it for the agent."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hpctl.nodes.acceptance import result, run
from hpctl.nodes.acceptance.cards import GpuCard
from hpctl.nodes.acceptance.result import AcceptanceRunResults, AcceptanceTestResult
from hpctl.toolkit.errors import HpctlError
from tests.process import ended
from tests.waiting import PATIENCE_S, until

LINE = "HEALTH_CHECK_RESULT:n1:{}:{}:{}"


def row(script: str, **more: object) -> str:
    body = {"name": "site.test", "what": "a test", "levels": ["quick"], "timeout_s": 5.0}
    return json.dumps({"tests": [{**body, "command": ["sh", "-c", script], **more}]})


def once(folder: Path, script: str, **more: object) -> AcceptanceTestResult:
    (folder / "a.yaml").write_text(row(script, **more))
    return run.run_acceptance_test(run.load_acceptance_tests(folder)["site.test"], 60.0, "n1")


def test_hpctls_own_rows_are_sound_and_quick_fits_in_90_seconds() -> None:
    known = run.load_acceptance_tests(Path("/nowhere"))
    assert (
        sum(test.timeout_s for test in run.choose_acceptance_tests(known, "quick", []))
        <= run.QUICK_S
    )
    assert {"quick", "full", "group"} == {level for t in known.values() for level in t.levels}


@pytest.mark.parametrize(
    ("script", "more", "status", "remedy", "reason"),
    [
        ("true", {}, "Passed", "none", ""),
        ("echo no >&2; exit 3", {"remedy": "reboot"}, "Failed", "reboot", "exit code 3: no"),
        (f"echo {LINE.format('Failed', 'replace', 'dead: 7')}", {}, "Failed", "replace", "dead: 7"),
        (f"echo {LINE.format('Skipped', 'none', 'no disk')}", {}, "Skipped", "none", "no disk"),
        (f"echo {LINE.format('Passed', 'none', '')}; exit 9", {}, "Failed", "none", "says Passed"),
        ("echo 'status: Fail'", {"failed": "Fail"}, "Failed", "none", "status: Fail"),
        (
            "echo severity 6; exit 1",
            {"remedies": [{"match": "severity 6", "remedy": "reset"}]},
            "Failed", "reset", "exit code 1",
        ),
        ("sleep 60", {"timeout_s": 0.2}, "Failed", "none", "was not done within 0.2 s"),
        ("yes", {}, "Failed", "none", "prints more than"),
        (r"printf '\033[31mred\n' >&2; exit 1", {}, "Failed", "none", "\ufffd[31mred"),
        ("true", {"needs": {"programs": ["no-such"]}}, "Skipped", "none", "no no-such on PATH"),
        ("true", {"needs": {"paths": ["/dev/none"]}}, "Skipped", "none", "no /dev/none on this"),
        ("true", {"needs": {"mounts": ["/nowhere"]}}, "Skipped", "none", "is not mounted"),
    ],
)  # fmt: skip
def test_what_a_command_amounts_to(tmp_path, script, more, status, remedy, reason) -> None:
    found = once(tmp_path, script, **more)
    assert (found.status, found.remedy) == (status, remedy)
    assert reason in found.reason
    assert len(found.reason) <= result.MAX_REASON


def test_figures_come_from_patterns_and_from_json(tmp_path: Path) -> None:
    told = '{"figures": {"a_gbs": 1.5, "B": 2, "n_us": NaN}}'
    script = f"echo 'rate 7000'; echo 'rate 5000'; echo '{told}'"
    figures = {"r_gbs": {"match": r"rate (\d+)", "scale": 1e-3, "of": "min"}}
    assert once(tmp_path, script, figures=figures).figures == {"a_gbs": 1.5, "r_gbs": 5.0}
    many = json.dumps({"figures": {f"f{n}": n for n in range(99)}})
    assert len(result.parse_measured_figures(many)) == result.MAX_FIGURES


@pytest.mark.parametrize(
    ("more", "place", "why"),
    [
        ({"levels": ["fast"]}, "tests.0.levels.0", "quick"),
        ({"colour": 1}, "tests.0.colour", "no such key"),
        ({"failed": "("}, "tests.0", "no regular expression"),
        ({"figures": {"x": {"match": "no group"}}}, "tests.0.figures.x", "exactly one group"),
    ],
)
def test_a_sites_row_that_is_wrong_is_one_error_with_its_place(tmp_path, more, place, why) -> None:
    with pytest.raises(HpctlError, match=why) as raised:
        once(tmp_path, "true", **more)
    assert f"{place} (line 1)" in str(raised.value)
    assert "a.yaml" in str(raised.value)


def test_a_file_that_others_may_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(row("true"))
    (tmp_path / "a.yaml").chmod(0o666)
    with pytest.raises(HpctlError, match="can be written by others"):
        run.load_acceptance_tests(tmp_path)


def test_a_run_writes_one_file_and_ends_with_1_where_a_test_failed(
    tmp_path, capsys, monkeypatch
) -> None:
    card = GpuCard("NVIDIA H200", 700.0, 700.0, "p5en.48xlarge")
    monkeypatch.setattr(run, "read_node_gpu_card", lambda: card)
    site, spool = tmp_path / "tests.d", tmp_path / "spool"
    site.mkdir()
    spool.mkdir()
    (site / "a.yaml").write_text(row("exit 1", remedy="reboot"))
    given = ["--test", "site.test", "--tests", str(site), "--spool", str(spool)]
    assert run.main([*given, "--id", "r-1"]) == 1
    (path,) = (spool / run.FOLDER).iterdir()
    found = result.decode_results(path.read_bytes())
    assert (found.id, found.failed_results[0].remedy, found.card) == ("r-1", "reboot", card)
    assert result.parse_test_result_line("site.test", capsys.readouterr().out) == found.results[0]
    assert run.main(["--test", "site.tset", "--tests", str(site)]) == 2
    assert "did you mean 'site.test'" in capsys.readouterr().err
    for n in range(run.MAX_WAITING):
        (spool / run.FOLDER / f"{n}.json").touch()
    assert run.main([*given, "--id", "r-2"]) == 2
    assert "results wait in" in capsys.readouterr().err


@pytest.mark.parametrize("level", ["group", "quick"])
def test_a_test_that_hangs_has_failed_where_its_whole_time_was_left(
    tmp_path, capsys, monkeypatch, level
) -> None:
    (tmp_path / "a.yaml").write_text(row("sleep 9", levels=[level], timeout_s=0.1))
    monkeypatch.setattr(run, "choose_acceptance_tests", lambda known, *_: [known["site.test"]])
    assert run.main(["--level", level, "--tests", str(tmp_path)]) == 1
    assert ":Failed:none:was not done within 0.1 s" in capsys.readouterr().out
    monkeypatch.setattr(run, "QUICK_S", 1.05)
    (tmp_path / "a.yaml").write_text(row("sleep 9", levels=[level], timeout_s=1.2))
    assert run.main(["--level", level, "--tests", str(tmp_path)]) == (2 if level == "quick" else 1)


@pytest.mark.parametrize("number", run.CANCELLING)
def test_a_run_that_is_cancelled_kills_what_it_started(tmp_path: Path, number: int) -> None:
    mark = tmp_path / "pid"
    (tmp_path / "a.yaml").write_text(row(f"echo $$ > {mark}; exec sleep 60", timeout_s=60))
    run_it = [sys.executable, "-m", "hpctl.nodes.acceptance.run", "--test", "site.test"]
    # The tests may themselves run under nohup, which has their children ignore SIGHUP.
    command = ["env", "--default-signal=HUP", *run_it, "--tests", str(tmp_path)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    until(lambda: mark.exists() and mark.read_text(), 20)
    child.send_signal(number)
    assert child.communicate(timeout=PATIENCE_S)[1] == ""
    assert child.returncode == 128 + number
    assert ended(int(mark.read_text()))


def test_a_run_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    (tmp_path / "a.yaml").write_text(row(f"echo $$ > {mark}; exec sleep 1"))
    command = [sys.executable, "-m", "hpctl.nodes.acceptance.run", "--test", "site.test"]
    child = subprocess.Popen(["nohup", *command, "--tests", str(tmp_path)])
    until(lambda: mark.exists() and mark.read_text(), 20)
    child.send_signal(signal.SIGHUP)
    assert child.wait(PATIENCE_S) == 0


CANCELLED_IN_POPEN = """
import os, signal, subprocess, sys
from hpctl.nodes.acceptance import run

class Popen(subprocess.Popen):
    def __init__(self, *words, **options):
        super().__init__(*words, **options)
        print(self.pid, flush=True)
        os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
run.install_cancellation_handlers()
sys.exit(run.main(sys.argv[1:]))
"""


def test_a_run_that_is_cancelled_while_it_starts_a_test_kills_it(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(row("exec sleep 60", timeout_s=60))
    command = [sys.executable, "-c", CANCELLED_IN_POPEN, "--test", "site.test"]
    done = subprocess.run(
        [*command, "--tests", str(tmp_path)], stdout=subprocess.PIPE, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 128 + signal.SIGTERM
    assert ended(int(done.stdout))


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"[]", b"\xff", b"{" * 9999, b" " * (result.MAX_FILE + 1),
        b'{"id":"../x","level":"quick","started":1,"finished":2}',
        b'{"id":"x","level":"quick","started":1,"finished":2,"results":[{"test":"A","status":"Passed"}]}',
        b'{"id":"x","level":"quick","started":1,"finished":2,"root":true}',
    ],
)  # fmt: skip
def test_a_file_that_holds_no_results_is_refused(raw: bytes) -> None:
    with pytest.raises(result.InvalidResultFileError):
        result.decode_results(raw)


def test_results_survive_their_file_and_hold_nothing_a_terminal_obeys() -> None:
    results = AcceptanceRunResults(
        "x", "quick", 1.0, 2.0, (AcceptanceTestResult("a", "Failed", reason="\x1b[2J"),)
    )
    assert result.decode_results(result.encode_results(results)).results[0].reason == "\ufffd[2J"
