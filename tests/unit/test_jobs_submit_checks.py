"""What is said of a script that would not resume, and what is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpctl.jobs import sbatch_options as scripts
from hpctl.jobs import submit_checks, submit_context
from hpctl.jobs.sbatch_options import parse_command_line
from hpctl.jobs.submit_checks import EffectiveOptions

STRICT = "#!/bin/bash -e\n"
PLAIN = "#!/bin/bash\n#SBATCH -N 2\n"


def of_text(body: str, head: str = STRICT) -> list[str]:
    return submit_checks.script_warnings(scripts.read("job.sh", head + body))


@pytest.mark.parametrize(
    "line",
    [
        "export MASTER_ADDR=node-1",
        'MASTER_ADDR="10.0.0.7" MASTER_PORT=1 srun python x.py',
        "srun torchrun --rdzv-endpoint 'node-1:29500' x.py",
        "torchrun \\\n  --nnodes 2 \\\n  --master-addr=node-1 x.py",
    ],
)
def test_a_pinned_rendezvous(line: str) -> None:
    (warning,) = of_text(line + "\n")
    assert warning.startswith("job.sh:2: the rendezvous is pinned to ")
    assert "scontrol show hostnames" in warning


@pytest.mark.parametrize(
    "line",
    [
        "export MASTER_ADDR=$(scontrol show hostnames | head -n 1)",
        "torchrun --rdzv-endpoint=$MASTER_ADDR:29500 x.py",
        "torchrun --master_addr localhost x.py",
        "export MASTER_PORT=29500",
    ],
)
def test_a_rendezvous_that_moves(line: str) -> None:
    assert of_text(line + "\n") == []


def test_hyperpod_s_hung_job_agent_is_a_second_doctor() -> None:
    (warning,) = of_text("export HYPERPOD_HANG_RULES=/fsx/rules.json\n")
    assert warning.startswith("job.sh:2: HYPERPOD_HANG_RULES is set")
    assert "a job that was cancelled is not run again" in warning
    assert of_text("unset HYPERPOD_HANG_RULES\nexport HYPERPOD_HANG_RULES=\n") == []
    rules = {"HYPERPOD_HANG_RULES": "/fsx/rules.json"}
    for export, environment, warned in [
        (None, rules, True),
        ("ALL", rules, True),
        ("HYPERPOD_HANG_RULES", rules, True),
        ("HYPERPOD_HANG_RULES=/x", {}, True),
        ("ALL,HYPERPOD_HANG_RULES=", rules, False),
        ("NONE", rules, False),
        (None, {}, False),
    ]:
        assert bool(submit_checks.hang_rule_warnings(export, environment)) is warned, export


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("srun -w node-1 x\n", "pinned to node-1"),
        ("srun --auto-resume=1 x\n", "HyperPod's own"),
        ("srun x || true\n", "hides the exit code"),
        ("torchrun x.py 2>&1 | tee log\n", "pipefail"),
    ],
)
def test_a_line_that_breaks_resuming(body: str, word: str) -> None:
    (warning,) = of_text(body)
    assert word in warning
    assert warning.startswith("job.sh:2: ")


@pytest.mark.parametrize(
    "body",
    [
        "srun -w $SLURM_NODELIST x\n",
        "srun --auto-resume=0 x\n",
        "srun x || exit $?\n",
        "set -o pipefail\nsrun x | tee log\n",
        "ls | wc -l || true\n",
        "srun bash -c 'a' && srun b\n",
        "rm -f x || true\nexec srun x\n",
        "srun bash -c 'a | b'\n",
        "first=$(srun hostname | head -n 1)\n",
        "srun x || { echo failed; exit 1; }\n",
    ],
)
def test_a_line_that_does_not(body: str) -> None:
    assert of_text(body) == []


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("srun x\necho done\n", 4),
        ("srun x\nexit 0\n", 4),
        ("srun x\n\ntrue\n\n# the end\n", 5),
        ("srun x &\nwait\n", 4),
    ],
)
def test_an_end_that_hides_what_happened(body: str, line: int) -> None:
    (warning,) = of_text(body, PLAIN)
    assert warning.startswith(f"job.sh:{line}: ")


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (PLAIN, "srun x\n"),
        (PLAIN, "srun x; rc=$?\necho $rc\nexit $rc\n"),
        (PLAIN, "set -e\nsrun x\necho done\n"),
        (STRICT, "srun x\necho done\n"),
        (PLAIN, "echo hello\n"),
        (PLAIN, "srun x & pid=$!\nwait $pid\n"),
        (PLAIN, "for i in 1 2; do\nsrun x\ndone\n"),
        (PLAIN, ""),
    ],
)
def test_an_end_that_does_not(head: str, body: str) -> None:
    assert of_text(body, head) == []


def of_options(words: str, text: str = PLAIN, spares: int = 0, **variables: str) -> list[str]:
    line = parse_command_line([*words.split(), "job.sh"])
    asked = EffectiveOptions(line, scripts.read("job.sh", text), variables)
    return submit_checks.option_warnings(asked, spares, resumes=True)


@pytest.mark.parametrize(
    ("words", "mend"),
    [
        ("--no-requeue", "leave it out"),
        ("--open-mode=truncate", "leave it out"),
        ("--no-kill", "add --spares"),
        ("-w node-[1-4]", "leave --nodelist out"),
        ("-t 29", "add --spares"),
        ("-t 0:29:59", "allow more"),
    ],
)
def test_options_that_break_resuming(words: str, mend: str) -> None:
    (warning,) = of_options(words)
    assert mend in warning


@pytest.mark.parametrize("words", ["-t 30", "-t 1-0", "-t UNLIMITED", "--no-kill=off", "--requeue"])
def test_options_that_do_not(words: str) -> None:
    assert of_options(words) == []


def test_spares_answer_a_short_limit_and_no_kill() -> None:
    assert of_options("-t 5 -k", spares=1) == []


def test_every_place_where_a_user_speaks_counts() -> None:
    assert of_options("", SBATCH_TIMELIMIT="5")
    assert of_options("", "#!/bin/sh\n#SBATCH --time 5\n")
    assert not of_options("-t 60", "#!/bin/sh\n#SBATCH --time 5\n", SBATCH_TIMELIMIT="5")
    assert not of_options("", "#!/bin/sh\n#SBATCH --time 5\n", SBATCH_TIMELIMIT="60")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("30:30", 1830),
        ("1:00:00", 3600),
        ("1-1:1:1", 90061),
        ("infinite", float("inf")),
        ("soon", None),
        ("", None),
    ],
)
def test_times_are_read_as_slurm_reads_them(text: str, seconds: float | None) -> None:
    assert submit_checks.time_limit_s(text) == seconds


@pytest.mark.parametrize(
    ("directory", "filesystem", "word"),
    [
        ("/tmp/x", "ext4", "below /tmp"),
        ("/dev/shm/x", "tmpfs", "on tmpfs"),
        ("/home/u/c", "ext4", "unless it is exported"),
        ("/local_scratch/u", "", "below /local_scratch"),
    ],
)
def test_storage_that_other_nodes_do_not_have(directory: str, filesystem: str, word: str) -> None:
    (warning,) = submit_checks.storage_warnings(directory, filesystem, ())
    assert word in warning
    assert "--tier" in warning
    assert submit_checks.storage_warnings(directory, filesystem, (f"local:{directory}",)) == []


def test_a_tier_on_a_local_disk_that_does_not_say_so() -> None:
    (warning,) = submit_checks.storage_warnings(
        "/fsx/c", "lustre", ("/opt/dlami/nvme/c", "/fsx/d", "s3://b")
    )
    assert "say --tier local:/opt/dlami/nvme/c" in warning


@pytest.mark.parametrize(
    ("directory", "filesystem"),
    [("/fsx/c", "lustre"), ("/tmp/c", "nfs4"), ("/s3/c", "fuse.mount-s3"), ("/shared", "")],
)
def test_storage_that_they_have(directory: str, filesystem: str) -> None:
    assert submit_checks.storage_warnings(directory, filesystem, ()) == []


def test_the_mount_table_is_read(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "1 0 8:1 / / rw shared:1 - ext4 /dev/a rw\n"
        "2 1 0:5 / /fsx\\040x rw - lustre a@tcp:/f rw\n"
        "3 1 0:6 / /fsx\\040x/deep rw master:1 shared:2 - tmpfs tmpfs rw\n"
        "garbage\n"
        "4 1 0:7 / /over rw - ext4 /dev/b rw\n"
        "5 1 0:8 / /over rw - nfs4 h:/ rw\n"
    )
    kinds = ["/fsx x/c", "/fsx x/deep/c", "/fsx", "/over/c"]
    assert [submit_context.filesystem(each, table) for each in kinds] == [
        "lustre", "tmpfs", "ext4", "nfs4",
    ]  # fmt: skip
    assert submit_context.filesystem("/x", tmp_path / "none") == ""
    assert submit_context.filesystem("/proc/self") == "proc"
