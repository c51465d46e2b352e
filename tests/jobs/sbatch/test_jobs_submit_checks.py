"""What is said of a script that would not resume, and what a job brings with it."""

import re
from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from hpctl.jobs.sbatch import context, submit
from hpctl.jobs.sbatch import options as sbatch_options
from hpctl.jobs.sbatch.options import (
    ParsedHpctlOptions,
    merge_hpctl_options,
    parse_batch_script,
    parse_sbatch_command_line,
)
from hpctl.jobs.sbatch.submit import EffectiveSbatchOptions
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions

CASES = yaml.safe_load(Path(__file__).with_name("sbatch_check_cases.yaml").read_text())

STRICT = "#!/bin/bash -e\n"
PLAIN = "#!/bin/bash\n#SBATCH -N 2\n"


def of_text(body: str, head: str = STRICT) -> list[str]:
    return submit.list_batch_script_warnings(
        sbatch_options.parse_batch_script("job.sh", head + body)
    )


@pytest.mark.parametrize(("line", "says"), CASES["lines that break resuming"])
def test_a_line_that_breaks_resuming(line, says):
    (warning,) = of_text(line + "\n")
    assert re.match(f"job.sh:2: {says}", warning)


def test_hung_job_agent_of_hyperpod_raises_a_warning():
    (warning,) = of_text("export HYPERPOD_HANG_RULES=/fsx/rules.json\n")
    assert warning.startswith("job.sh:2: HYPERPOD_HANG_RULES is set")
    assert "a job that was cancelled is not run again" in warning
    assert of_text("unset HYPERPOD_HANG_RULES\nexport HYPERPOD_HANG_RULES=\n") == []
    rules = {"HYPERPOD_HANG_RULES": "/fsx/rules.json"}
    for export, environment, warned in [
        (None, rules, True),
        ("HYPERPOD_HANG_RULES=/x", {}, True),
        ("ALL,HYPERPOD_HANG_RULES=", rules, False),
        ("NONE", rules, False),
        (None, {}, False),
    ]:
        assert bool(submit.list_hung_job_rule_warnings(export, environment)) is warned, export


@pytest.mark.parametrize(("body", "line"), CASES["ends that hide what happened"])
def test_an_end_that_hides_what_happened(body, line):
    (warning,) = of_text(body, PLAIN)
    assert warning.startswith(f"job.sh:{line}: ")


@pytest.mark.parametrize(("head", "body"), CASES["scripts that resume"])
def test_lines_and_an_end_that_resume(head, body):
    assert of_text(body, head) == []


def of_options(options: str, text: str = PLAIN, spares: int = 0, **variables: str) -> list[str]:
    line = parse_sbatch_command_line([*options.split(), "job.sh"])
    asked = EffectiveSbatchOptions(
        line, sbatch_options.parse_batch_script("job.sh", text), variables
    )
    return submit.list_option_warnings(asked, spares, resumes=True)


@pytest.mark.parametrize(("options", "hint"), CASES["options that break resuming"])
def test_options_that_break_resuming(options, hint):
    (warning,) = of_options(options)
    assert hint in warning


@pytest.mark.parametrize(
    "options", ["-t 30", "-t 1-0", "-t UNLIMITED", "--no-kill=off", "--requeue"]
)
def test_options_that_do_not(options):
    assert of_options(options) == []


def test_spares_answer_a_short_limit_and_no_kill():
    assert of_options("-t 5 -k", spares=1) == []


def test_every_place_where_a_user_speaks_counts():
    assert of_options("", SBATCH_TIMELIMIT="5")
    assert of_options("", "#!/bin/sh\n#SBATCH --time 5\n")
    assert not of_options("-t 60", "#!/bin/sh\n#SBATCH --time 5\n", SBATCH_TIMELIMIT="5")
    assert not of_options("", "#!/bin/sh\n#SBATCH --time 5\n", SBATCH_TIMELIMIT="60")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ("", []),
        ("--output=x.log", []),
        ("-o /l/logs/%j.out", [("output", "/l/logs")]),
        ("-o logs/%x/%j.out -e err/a", [("output", "/home/u/logs"), ("error", "/home/u/err")]),
        ("-o logs/%j/log.out", [("output", "/home/u/logs/%j")]),
        ("--chdir=/fsx --output=logs/a", [("output", "/fsx/logs")]),
    ],
)
def test_the_directories_of_a_job_s_logs(options, found):
    line = parse_sbatch_command_line([*options.split(), "job.sh"])
    asked = EffectiveSbatchOptions(line, sbatch_options.parse_batch_script("job.sh", PLAIN), {})
    assert submit.list_job_log_directories(asked, "/home/u") == found


@pytest.mark.parametrize(
    ("answer", "creates"),
    [
        ("echo slurm-wlm 22.05.8", False),
        ("echo slurm 23.02.0", True),
        ("echo slurm 24.11.5", True),
        ("echo 0.1", False),
        ("exit 1", False),
    ],
)
def test_the_release_that_creates_the_directories_of_logs(tmp_path, answer, creates):
    sbatch = tmp_path / "sbatch"
    sbatch.write_text(f"#!/bin/sh\n{answer}\n")
    sbatch.chmod(0o755)
    assert context.can_slurm_create_log_directories(str(sbatch)) is creates
    assert context.can_slurm_create_log_directories(str(tmp_path / "none")) is False


ROWS = """\
12|hpctl:{"ckpt":"/fsx"}
13_4|hpctl:{"policy":{"restarts":2}}
14|hpctl:{"policy":{"restarts":0}}
15|my own words
16_[1-3]|hpctl:{}
17+0|hpctl:{}
17+1|hpctl:{}
"""


@pytest.mark.parametrize(
    ("dependency", "asked", "found"),
    [
        ("afterok:12", "12", ("12",)),
        ("afternotok:12:13_4+10,afterany:14:15", "12,13_4,14,15", ("12", "13_4")),
        ("aftercorr:16?afterany:17", "16,17", ("16", "17")),
        ("after:12", "", ()),
        ("singleton", "", ()),
        ("", "", ()),
    ],
)
def test_the_jobs_of_a_dependency_that_may_run_again(tmp_path, dependency, asked, found):
    squeue, log = tmp_path / "squeue", tmp_path / "log"
    rows = tmp_path / "rows"
    rows.write_text(ROWS)
    squeue.write_text(f'#!/bin/sh\nfor last; do :; done\necho "$last" >{log}\ncat {rows}\n')
    squeue.chmod(0o755)
    assert context.find_restartable_dependencies(dependency, str(squeue)) == found
    assert (log.read_text().strip() if log.exists() else "") == (asked and f"--jobs={asked}")
    assert context.find_restartable_dependencies(dependency, str(tmp_path / "none")) == ()


@pytest.mark.parametrize(("text", "seconds"), CASES["time limits"])
def test_times_are_read_as_slurm_reads_them(text, seconds):
    assert submit.parse_time_limit_s(text) == seconds


@pytest.mark.parametrize(("directory", "filesystem", "word"), CASES["storage of one node"])
def test_storage_that_other_nodes_do_not_have(directory, filesystem, word):
    (warning,) = submit.list_checkpoint_storage_warnings(directory, filesystem, ())
    assert word in warning
    assert "--tier" in warning
    assert (
        submit.list_checkpoint_storage_warnings(directory, filesystem, (f"local:{directory}",))
        == []
    )


def test_where_declared_files_are_not_looked_for_is_said():
    declared = ParsedHpctlOptions(
        checkpoint_dir="/fsx/c",
        checkpoint_files=("w_{step}.bin",),
        tiers=("/nvme", "s3://b/run"),
        fast=FastCheckpointSaveOptions(dir="/nvme/run"),
    )
    fast, stored = submit.list_checkpoint_file_pattern_warnings(declared)
    assert "--fast-dir does not copy the files" in fast
    assert "not looked for in s3://b/run" in stored
    assert (
        list(submit.list_checkpoint_file_pattern_warnings(replace(declared, checkpoint_files=())))
        == []
    )
    assert (
        list(
            submit.list_checkpoint_file_pattern_warnings(
                replace(declared, tiers=("/nvme",), fast=None)
            )
        )
        == []
    )


def test_a_tier_on_a_local_disk_that_does_not_say_so():
    (warning,) = submit.list_checkpoint_storage_warnings(
        "/fsx/c", "lustre", ("/opt/dlami/nvme/c", "/fsx/d", "s3://b")
    )
    assert "say --tier local:/opt/dlami/nvme/c" in warning


@pytest.mark.parametrize(
    ("directory", "filesystem"),
    [("/fsx/c", "lustre"), ("/tmp/c", "nfs4"), ("/s3/c", "fuse.mount-s3"), ("/shared", "")],
)
def test_storage_that_they_have(directory, filesystem):
    assert submit.list_checkpoint_storage_warnings(directory, filesystem, ()) == []


def test_the_mount_table_is_read(tmp_path):
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
    assert [context.find_file_system_type(each, table) for each in kinds] == [
        "lustre", "tmpfs", "ext4", "nfs4",
    ]  # fmt: skip
    assert context.find_file_system_type("/x", tmp_path / "none") == ""
    assert context.find_file_system_type("/proc/self") == "proc"


RULES = "rules:\n- {name: loss, logPattern: 'loss (\\d+)', metricThreshold: 2, operator: gt}\n"


def compact(tmp_path, directives: str, **environment: str) -> dict[str, object]:
    script = parse_batch_script("job.sh", f"#!/bin/sh\n#HPCTL {directives}\n")
    return context.load_job_recovery_policy(
        merge_hpctl_options({}, script.own, str(tmp_path)), environment, str(tmp_path)
    )


def test_a_file_of_the_submitter(tmp_path):
    (tmp_path / "p.yaml").write_text("restarts: 3\n'on': {hang: hold}\nspares: 1\n")
    answer = {"restarts": 3, "on": {"hang": {"ladder": ["hold"]}}, "spares": 1}
    assert compact(tmp_path, "--policy p.yaml") == answer
    assert compact(tmp_path, f"--policy {tmp_path}/p.yaml") == answer


def test_a_name_of_the_clusters(tmp_path):
    (tmp_path / "named").mkdir()
    (tmp_path / "named/careful.yaml").write_text("restarts: 1\n")
    where = str(tmp_path / "named")
    assert compact(tmp_path, "--policy careful", HPCTL_POLICIES=where) == {"restarts": 1}
    with pytest.raises(HpctlError) as caught:
        compact(tmp_path, "--policy brave", HPCTL_POLICIES=where)
    assert "no policy of that name" in str(caught.value)
    assert caught.value.hint == "Choose one of: careful."


def test_rules_go_into_the_policy(tmp_path):
    (tmp_path / "mine.yaml").write_text(RULES)
    (tmp_path / "p.yaml").write_text("log_rules: nemo\nrestarts: 2\n")
    got = compact(tmp_path, "--policy p.yaml --log-rules megatron --log-rules mine.yaml")
    assert got == {"restarts": 2, "log_rules": ["megatron", f"{tmp_path}/mine.yaml"]}


@pytest.mark.parametrize(("directive", "text", "message"), CASES["unusable directives"])
def test_what_cannot_be_used_is_refused_with_its_place(tmp_path, directive, text, message):
    (tmp_path / "p.yaml").write_text(text)
    with pytest.raises(HpctlError) as caught:
        compact(tmp_path, directive)
    assert str(caught.value).startswith("job.sh:2: --")
    assert message in str(caught.value)
    assert caught.value.hint
