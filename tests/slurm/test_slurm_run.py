"""The runner: bounded in time and output, nothing left running, no surprises in the environment."""

import os
import time
from pathlib import Path

import pytest

from hpctl.slurm import run
from hpctl.slurm.cli import CliScheduler
from hpctl.slurm.run import CommandEndKind, SlurmCommandRunner
from hpctl.toolkit.errors import ServiceUnavailable
from tests.waiting import LONGER_AND_LONGER, until

AT_ONCE_S = 30.0
"""Half of what scontrol itself tries for, and far below what the stand-ins sleep: a busy machine
takes seconds to start a program."""


def script(directory: Path, text: str) -> Path:
    path = directory / "scontrol"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return directory


def test_output_and_status(tmp_path) -> None:
    done = SlurmCommandRunner(bin_dir=script(tmp_path, 'echo "$1"; echo oops >&2; exit 3')).run(
        "scontrol", "é"
    )
    assert (done.end, done.code, done.text, done.err) == (CommandEndKind.EXITED, 3, "é\n", "oops\n")
    assert not done.ok
    assert done.message == "oops"


def test_a_late_command_is_killed_with_its_children(tmp_path) -> None:
    pidfile = tmp_path / "pid"
    bin_dir = script(tmp_path, f"sleep 600 & echo $! > {pidfile}; wait")
    for timeout in LONGER_AND_LONGER:
        began = time.monotonic()
        assert (
            SlurmCommandRunner(bin_dir=bin_dir, timeout=timeout).run("scontrol").end
            is CommandEndKind.TIMED_OUT
        )
        assert time.monotonic() - began < timeout + AT_ONCE_S
        if pidfile.exists() and pidfile.read_text():
            break
    until(lambda: not _alive(int(pidfile.read_text())))


def test_a_command_that_is_given_up_is_killed(tmp_path) -> None:
    runner = SlurmCommandRunner(bin_dir=script(tmp_path, "echo part; sleep 600"))
    began = time.monotonic()
    assert runner.run("scontrol", give_up=lambda: True).end is CommandEndKind.GIVEN_UP
    assert time.monotonic() - began < AT_ONCE_S


def test_a_command_that_closes_its_output_and_stays_is_killed(tmp_path) -> None:
    runner = SlurmCommandRunner(bin_dir=script(tmp_path, "exec >&- 2>&-; sleep 60"), timeout=0.5)
    assert runner.run("scontrol").end is CommandEndKind.TIMED_OUT


def test_too_much_output_is_cut_off(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(run, "MAX_OUTPUT", 1 << 20)
    assert (
        SlurmCommandRunner(bin_dir=script(tmp_path, "yes"), timeout=60).run("scontrol").end
        is CommandEndKind.TOO_LONG
    )


def test_much_error_output_does_not_block(tmp_path) -> None:
    text = "i=0; while [ $i -lt 9000 ]; do echo 0123456789 >&2; i=$((i+1)); done"
    done = SlurmCommandRunner(bin_dir=script(tmp_path, text), timeout=60).run("scontrol")
    assert done.ok
    assert len(done.err) < 2 * run.MAX_ERROR + (1 << 20)


def test_a_missing_program_or_configuration_is_reported_at_once(tmp_path) -> None:
    missing = SlurmCommandRunner(bin_dir=tmp_path).run("scontrol")
    assert missing.end is CommandEndKind.NOT_STARTED
    assert str(tmp_path) in missing.message
    began = time.monotonic()
    unconfigured = SlurmCommandRunner(conf=tmp_path / "slurm.conf").run("scontrol", "show", "node")
    assert unconfigured.end is CommandEndKind.NOT_STARTED
    assert "slurm.conf" in unconfigured.message
    assert time.monotonic() - began < AT_ONCE_S, "scontrol itself tries for a minute"


def test_a_missing_file_that_the_environment_names_is_reported_at_once(tmp_path) -> None:
    runner = SlurmCommandRunner(environ={**os.environ, "SLURM_CONF": f"{tmp_path}/slurm.conf"})
    began = time.monotonic()
    with pytest.raises(
        ServiceUnavailable, match=f"there is no {tmp_path}/slurm.conf, which SLURM_CONF"
    ):
        CliScheduler(runner).view()
    assert time.monotonic() - began < AT_ONCE_S, "scontrol itself tries for a minute"


def test_a_nul_in_an_argument_is_refused() -> None:
    assert SlurmCommandRunner().run("scontrol", "a\0b").end is CommandEndKind.NOT_STARTED


def test_the_environment_says_what_language_and_time_and_whose_slurm(tmp_path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.touch()
    outside = {"PATH": os.environ["PATH"], "SLURM_CONF": "/other", "SLURM_TIME_FORMAT": "%s"}
    outside |= {"SLURM_CLUSTERS": "x", "TZ": "Asia/Tokyo", "LANG": "de_DE.UTF-8", "HOME": "/root"}
    who = {"SLURM_JWT": "x", "SLURM_SACK_SOCKET": "/s", "SLURM_CONF_SERVER": "head:6817"}
    outside |= who
    env = SlurmCommandRunner(conf, environ=outside).env()
    assert (env["SLURM_CONF"], env["LC_ALL"], env["TZ"]) == (str(conf), "C", "UTC")
    assert not {"SLURM_TIME_FORMAT", "SLURM_CLUSTERS"} & set(env)
    assert SlurmCommandRunner(environ=outside).env()["SLURM_CONF"] == "/other"
    assert {name: env.get(name) for name in who} == who


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (ProcessLookupError, FileNotFoundError):
        return False
    return state != "Z"
