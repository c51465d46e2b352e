"""What the SPANK plugin is told: a whole answer, or none."""

import sys

import pytest

from hpctl.jobs import spank
from hpctl.toolkit.compat import SAFE_PATH


@pytest.fixture
def answers(tmp_path, monkeypatch):
    """A directory for the answer, in a place where there is an sbatch and a script."""
    program = tmp_path / "bin/sbatch"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.chdir(tmp_path)
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NODELIST"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "job.sh").write_text("#!/bin/sh\ntrue\n")
    (tmp_path / "policy.yaml").write_text("restarts: 2\n")
    (tmp_path / "answer").mkdir()
    return tmp_path / "answer"


def words(answer):
    text = (answer / spank.ANSWER).read_text()
    assert text.endswith("\0")
    return text.split("\0")[:-1]


def test_a_submission(answers, capsys):
    (answers.parent / "job.sh").write_text("#!/bin/sh\n#HPCTL --checkpoint-dir ck\ntrue\n")
    typed = ["-N2", "job.sh", "a", "", "b\nc"]
    assert spank.main(["sbatch", str(answers), "policy.yaml", *typed]) == 0
    assert words(answers) == [
        "sbatch", "--requeue", "--open-mode=append", "-N2",
        f'--comment=hpctl:{{"ckpt":"{answers.parent}/ck","policy":{{"restarts":2}}}}',
        f"{answers}/job.sh", "a", "", "b\nc",
    ]  # fmt: skip
    assert "hpctl_preamble" in (answers / "job.sh").read_text()
    assert (answers.parent / "ck").is_dir()
    answer = capsys.readouterr()
    assert answer.out == ""
    assert "hpctl: added --requeue" in answer.err


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["sbatch", "", "none.sh"], "cannot read the script none.sh"),
        (["sbatch", "./no.yaml", "job.sh"], "no.yaml: 1 problem"),
        (["sbatch", "", "-N1", ":", "-N1", "job.sh"], "a heterogeneous job"),
        (["srun", "", "true"], "hpctl run was not started in a Slurm job"),
    ],
)
def test_a_refusal_is_no_answer(answers, capsys, arguments, why):
    kind, policy, *typed = arguments
    assert spank.main([kind, str(answers), policy, *typed]) == 1
    assert why in capsys.readouterr().err
    assert list(answers.iterdir()) == []


def test_a_step(answers, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-2]")
    python = [sys.executable, *SAFE_PATH, "hpctl", "run"]
    assert spank.main(["srun", str(answers), "", "-n2", "python", "x.py", "--", "y"]) == 0
    assert words(answers) == [*python, "--", "-n2", "python", "x.py", "--", "y"]
    assert spank.main(["srun", str(answers), "policy.yaml", "true"]) == 0
    assert words(answers) == [*python, "--policy", f"{answers.parent}/policy.yaml", "--", "true"]
