"""submitit's cluster `hpctl`, by the real submitit on a real Slurm with a daemon."""

import subprocess
import sys
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.client.wheel import build_wheel
from tests.daemon.chaos import Chaos, cluster
from tests.live import until

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
PROGRAM = Path(__file__).with_name("submitit_program.py")


@pytest.fixture(scope="module")
def live():
    with cluster(nodes=2) as live:
        yield live


@pytest.fixture(scope="module")
def client(tmp_path_factory) -> Path:
    """hpctl-client where submitit finds its entry point."""
    where = tmp_path_factory.mktemp("client")
    with zipfile.ZipFile(build_wheel(where)) as files:
        files.extractall(where)
    return where


@contextmanager
def program(live: Chaos, client: Path, story: str, folder: Path):
    """A user's program while it runs."""
    command = live.sandbox.command([sys.executable, str(PROGRAM), story, str(folder)])
    environment = {
        **live.sandbox.env,
        "PYTHONPATH": str(client),
        "HPCTL_COMMAND": str(Path(sys.executable).with_name("hpctl")),
    }
    with subprocess.Popen(
        command, env=environment, cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            running.kill()


def printed(running: "subprocess.Popen[str]") -> str:
    """Return what a program has printed by its end."""
    out, err = running.communicate(timeout=150)
    assert running.returncode == 0, err
    return out


def find_job(live: Chaos, story: str) -> int:
    """Return the number of the job of a story once it runs."""

    def found() -> list[int]:
        jobs = live.scheduler.view().jobs.values()
        return [job.id for job in jobs if job.name == story and job.state == "RUNNING"]

    until(lambda: bool(found()), 60, f"the job of {story} runs")
    return found()[0]


def test_a_node_is_lost_under_a_function_and_the_result_still_comes(live, client, tmp_path):
    with program(live, client, "node", tmp_path) as running:
        live.xid(live.job(find_job(live, "node")).nodes[0])
        assert printed(running) == "run 1\n"


def test_an_exception_is_the_result_and_is_not_restarted(live, client, tmp_path):
    with program(live, client, "fail", tmp_path) as running:
        said = printed(running)
    assert "ValueError: bad batch" in said
    assert said.endswith("HpctlJob FAILED\n")
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.nightly
def test_a_function_for_each_task_of_an_array(live, client, tmp_path):
    with program(live, client, "array", tmp_path) as running:
        assert printed(running) == "[11, 22, 33]\n"


@pytest.mark.nightly
def test_a_checkpointable_function_requeues_itself_and_hpctl_lets_it(live, client, tmp_path):
    with program(live, client, "checkpoint", tmp_path) as running:
        job = find_job(live, "checkpoint")
        until(lambda: live.job(job).state == "PENDING", 60, "submitit has requeued its job")
        assert live.of_job(job) == []
        live.cleared(job)
        live.sandbox.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
        assert printed(running) == "41\n"
        assert live.job(job).restarts == 1
