"""Programs that hang where no signal reaches them."""

import subprocess
import sys
import tempfile
import time

import pytest

from hpctl.toolkit.run_within import run_program_with_timeout


def test_the_output_and_the_exit_code_are_there():
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
        program = "import sys; print('yes'); sys.stderr.write('no'); exit(3)"
        assert (
            run_program_with_timeout([sys.executable, "-c", program], 60, out=out, error=said) == 3
        )
        out.seek(0)
        said.seek(0)
        assert (out.read(), said.read()) == (b"yes\n", b"no")


def test_a_program_that_no_signal_ends_is_not_waited_for(monkeypatch):
    """A process in state D is not made here: its kill does nothing."""
    kept = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda started: kept.append(started))
    with tempfile.TemporaryFile() as out:
        begun = time.monotonic()
        assert run_program_with_timeout(["sleep", "60"], 0.2, out=out) is None
        assert time.monotonic() - begun < 30
        assert [each.poll() for each in kept] == [None]
        kept[0].terminate()
        kept[0].wait(60)
        assert run_program_with_timeout(["true"], 60, out=out) == 0


def test_a_program_that_is_not_there_is_an_error():
    with tempfile.TemporaryFile() as out, pytest.raises(FileNotFoundError):
        run_program_with_timeout(["/no/such/program"], 1, out=out)
