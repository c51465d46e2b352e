"""What the shell completes of options, presets and files."""

import os
import signal
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner

from hpctl.cli.main import cli

pytestmark = pytest.mark.integration


def complete(line: str) -> set[str]:
    """`type,value` of all that bash is told for the last word of `line`."""
    args = line.split()
    env = {"_HPCTL_COMPLETE": "bash_complete", "COMP_WORDS": line}
    env["COMP_CWORD"] = str(len(args) - (0 if line.endswith(" ") else 1))
    result = CliRunner(env=env).invoke(cli, [], prog_name="hpctl")
    return set(result.stdout.split())


COMPLETED = {
    "plain,megatron": (
        "policy log-rules me", "policy test-logs --preset me", "run --log-rules me",
    ),
    "plain,--spares": ("sbatch --sp", "sbatch --help --sp", "run --sp"),
    "file,./ru": (
        "run --log-rules ./ru", "run --policy ./ru", "checkpoint ls ./ru",
        "checkpoint advise ./ru", "sbatch --requeue ./ru",
    ),
}  # fmt: skip


@pytest.mark.parametrize("said", COMPLETED)
def test_presets_files_and_the_wrappers_options_complete(said: str) -> None:
    for line in COMPLETED[said]:
        assert complete(f"hpctl {line}") == {said}, line


@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGALRM])
def test_completion_that_is_stopped_says_nothing(ended_by: signal.Signals) -> None:
    """By Ctrl-C, or by its own clock: the endpoint takes the connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(100)
        args = {"COMP_WORDS": "hpctl cluster describe ", "COMP_CWORD": "3"}
        aws = {
            "AWS_ENDPOINT_URL_SAGEMAKER": f"http://127.0.0.1:{silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "x",
            "AWS_SECRET_ACCESS_KEY": "x",
            "AWS_REGION": "us-east-1",
        }
        # Its own clock would end it before it asks where the machine is busy.
        program = "from hpctl.cli import main; main.COMPLETED_IN_S = 120; main.main()"
        with subprocess.Popen(
            [sys.executable, "-c", program],
            env={**os.environ, **args, **aws, "_HPCTL_COMPLETE": "bash_complete"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as shell:
            with silent.accept()[0]:
                shell.send_signal(ended_by)
                assert shell.communicate(timeout=100) == (b"", b"")
            assert shell.returncode == 0
