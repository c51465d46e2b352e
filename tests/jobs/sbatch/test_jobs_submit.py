"""What hpctl sbatch decides, from values: the command line, and the script."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from hpctl.jobs.sbatch import options as sbatch_options
from hpctl.jobs.sbatch.context import PythonRuntime, SbatchSubmissionContext
from hpctl.jobs.sbatch.options import merge_hpctl_options, parse_sbatch_command_line
from hpctl.jobs.sbatch.submit import build_resumable_submission
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.registration import JobRegistration, parse_registration_comment

CASES = yaml.safe_load(Path(__file__).with_name("sbatch_cases.yaml").read_text())


@pytest.mark.parametrize(("options", "script", "arguments"), CASES["command lines"])
def test_the_script_is_found(options, script, arguments):
    line = parse_sbatch_command_line(options.split())
    assert (line.script, list(line.arguments)) == (script, arguments)


def test_words_go_through_untouched_but_hpctls_own():
    options = ["-N2", "--checkpoint-dir=/c", "--mem", "3G", "--dry-run", "-J", "a b", "job.sh", "x"]
    line = parse_sbatch_command_line(options)
    assert line.passed == ["-N2", "--mem", "3G", "-J", "a b"]
    assert {name: [each.value for each in found] for name, found in line.own.items()} == {
        "checkpoint-dir": ["/c"],
        "dry-run": [""],
    }
    assert line.given == {"nodes": "2", "mem": "3G", "job-name": "a b"}


def test_wrapped_command_is_kept_separate():
    line = parse_sbatch_command_line(["-N2", "--wrap", "srun a b", "--mem=3G"])
    assert (line.passed, line.given["wrap"]) == (["-N2", "--mem=3G"], "srun a b")


def test_abbreviations_count():
    assert "requeue" in parse_sbatch_command_line(["--requ"]).given
    assert "open-mode" in parse_sbatch_command_line(["--open", "truncate"]).given
    assert parse_sbatch_command_line(["--nt", "2"]).given == {
        "nt": ""
    }  # ambiguous: sbatch will say so


@pytest.mark.parametrize("typo", ["--checkpoint-dri", "--chekpoint-dir=/c", "--dryrun"])
def test_hpctls_own_typos_are_not_sbatchs_business(typo):
    with pytest.raises(HpctlError) as caught:
        parse_sbatch_command_line([typo, "job.sh"])
    assert "Did you mean" in caught.value.hint


@pytest.mark.parametrize("options", [["--checkpoint-dir"], ["--checkpoint-dir="]])
def test_a_missing_value_is_named(options):
    with pytest.raises(HpctlError, match="needs a value"):
        parse_sbatch_command_line(options)


RUN = "#!/bin/sh\n#SBATCH -t 60\nhpctl run -- python train.py\n"
STEP = "#!/bin/sh\n#SBATCH -t 60\nsrun python train.py\n"
PLAIN = "#!/bin/bash\n#SBATCH -N 2\n\n# a remark\necho hello\n# later\n"


def submit(options="", text=PLAIN, environment=None, **around):
    typed = shlex.split(options)
    line = parse_sbatch_command_line(typed if "--wrap" in options else [*typed, "job.sh"])
    script = None if "wrap" in line.given else sbatch_options.parse_batch_script("job.sh", text)
    asked = merge_hpctl_options(line.own, script.own if script else {}, "/home/u")
    return build_resumable_submission(
        line,
        script,
        asked,
        SbatchSubmissionContext(PythonRuntime("/py"), environment or {}, **around),
    )


def refused(options: str = "", text: str = PLAIN) -> HpctlError:
    with pytest.raises(HpctlError) as caught:
        submit(options, text)
    return caught.value


@pytest.mark.parametrize(("options", "text", "environment", "absent"), CASES["what the user set"])
def test_options_of_the_user_are_kept(options, text, environment, absent):
    got, given = submit(options, text, environment).options, len(options.split())
    assert got[-1] == "--comment=hpctl:{}"
    added = got[: -1 - given]
    assert absent not in added
    assert len(added) == 1
    assert not any(absent in note for note in submit(options, text, environment).notes)


@pytest.mark.parametrize(("options", "environment", "warned"), CASES["begin anew"])
def test_resume_from_scratch_warns_that_it_holds_for_every_start(options, environment, warned):
    found = submit(f"--checkpoint-dir /c {options}", environment=environment).warnings
    assert any("holds for every start" in each for each in found) == warned


def test_a_dependency_on_a_job_that_may_run_again_is_warned_of():
    assert not any("--dependency" in each for each in submit("--dependency=afterok:12").warnings)
    (found,) = (
        each
        for each in submit("--dependency=afterok:12", restarted=("12",)).warnings
        if "--dependency" in each
    )
    assert "hpctl runs job 12 again when its program fails" in found


def test_the_users_comment_stays_behind_the_registration():
    for options, text in (
        ("--comment='my own'", PLAIN),
        ("", "#!/bin/sh\n#SBATCH --comment 'my own'\n"),
    ):
        got = submit(f"--checkpoint-dir /c {options}", text)
        comment = got.options[-1].partition("=")[2]  # after theirs: of two, sbatch takes the last
        assert (comment, parse_registration_comment(comment)) == (
            'hpctl:{"ckpt":"/c"} my own',
            got.registered,
        )
        assert any("your --comment stands after" in note for note in got.notes)
    # sbatch reads no variable of this name (seen on 22.05.8).
    got = submit("--checkpoint-dir /c", environment={"SBATCH_COMMENT": "x"})
    assert got.options[-1].endswith('{"ckpt":"/c"}')


def test_the_comment_is_read_back():
    got = submit("--checkpoint-dir /c/{job_id}")
    comment = next(w for w in got.options if w.startswith("--comment=")).partition("=")[2]
    assert (
        parse_registration_comment(comment)
        == parse_registration_comment(comment + " held: no budget")
        == got.registered
    )
    for other in ("", "mine", "hpctl:", "hpctl:[]"):
        assert parse_registration_comment(other) is None
    flaw = "`ckpt` in its Comment is not a text"
    assert parse_registration_comment('hpctl:{"ckpt":1}') == JobRegistration(flaw=flaw)


def test_the_directive_and_the_command_line_over_it():
    text = "#!/bin/sh\n#HPCTL --checkpoint-dir '/c/a b' # here\ntrue\n"
    assert submit("", text).bases == ("/c/a b",)
    assert submit("--checkpoint-dir /other", text).bases == ("/other",)
    assert submit("", text.replace("-dir ", "-dir=")).bases == ("/c/a b",)


@pytest.mark.parametrize(("line", "hint"), CASES["bad directives"])
def test_bad_directives_name_the_line_and_the_fix(line, hint):
    error = refused("", f"#!/bin/sh\n# one\n{line}\ntrue\n")
    assert str(error).startswith("job.sh:3: ")
    assert hint in error.hint


def test_a_late_directive_is_pointed_at():
    got = submit("", "#!/bin/sh\ntrue\n#HPCTL --checkpoint-dir /c\n")
    assert got.registered == JobRegistration()
    assert any(each.startswith("job.sh:3: #HPCTL after the first") for each in got.warnings)


@pytest.mark.parametrize(("options", "text", "message", "hint"), CASES["refused"])
def test_job_that_cannot_resume_is_refused(options, text, message, hint):
    error = refused(options, text)
    assert message in str(error)
    assert hint in error.hint


@pytest.mark.parametrize(("first", "shell"), CASES["shells"])
def test_the_shell_is_seen(first, shell):
    assert sbatch_options.parse_batch_script("job.sh", first + "\n").shell == shell


@pytest.mark.parametrize("odd", ["\f", "\v", "\x85", "\N{LINE SEPARATOR}", "\x1c"])
def test_only_a_newline_ends_a_line(odd):
    # Form feeds are in old scripts, and line separators in what was pasted from a web page.
    script = sbatch_options.parse_batch_script(
        "j", f"#!/bin/sh\n# one{odd}two\n#SBATCH -N4\ntrue\n"
    )
    assert script.given == {"nodes": "4"}
    text = f"#!/bin/sh\n# one{odd}two\n#SBATCH -N4\nx\ntrue\n"
    assert script.insert_before_first_command("x\n") == text


def test_wrap_becomes_a_script():
    got = submit("--checkpoint-dir /c --wrap 'srun a b' -N2")
    assert got.options[:3] == ("--requeue", "--open-mode=append", "-N2")
    assert not any("wrap" in word for word in got.options)
    assert got.copy.name == "wrap"
    head, _, rest = got.copy.text.partition("# --- begin")
    assert head == "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n"
    assert rest.endswith("\nsrun a b\n")
    plain = submit("-N2 --wrap 'srun a b'")
    assert plain.copy.text.endswith("\nsrun a b\n")
    assert plain.registered == JobRegistration()


def test_job_without_checkpoint_dir_is_registered_with_a_warning():
    got = submit("", STEP)
    assert got.options[-1] == "--comment=hpctl:{}"
    assert parse_registration_comment("hpctl:{}") == got.registered == JobRegistration()
    assert any("every restart begins at the script's beginning" in note for note in got.notes)
    assert "trap '" in got.text
    own = submit("--no-resume", STEP)
    assert own.registered == JobRegistration()
    assert not any("begins at the script's beginning" in note for note in own.notes)


def test_a_script_of_another_language_is_registered_as_it_is():
    got = submit("", "#!/usr/bin/env python3\nimport train\n")
    assert (got.copy, got.registered) == (None, JobRegistration())
    assert any("why it ends is not read from its log" in note for note in got.notes)
    assert "python3 script" in str(refused("--save-signal USR1", "#!/usr/bin/env python3\nx\n"))


@pytest.mark.parametrize(
    ("options", "body", "kept"),
    [
        ("", "exec srun python x.py", "srun python x.py"),
        ("", "exec python3 x.py \\\n  --lr 1", "python3 x.py \\\n  --lr 1"),
        ("--save-signal USR1", "exec srun python x.py", "srun python x.py"),
        ("--save-signal USR1", "exec python x.py", "exec python x.py"),
        ("--signal=B:USR1@60", "exec srun x", "exec srun x"),
        ("", "exec >log 2>&1\nsrun x", "exec >log 2>&1\nsrun x"),
        ("", "srun bash -c '\nexec python x.py'", "srun bash -c '\nexec python x.py'"),
        ("", "exec hpctl run -- x", "exec hpctl run -- x"),
    ],
)
def test_the_shell_stays_to_read_why_the_program_ends(options, body, kept):
    assert submit(options, f"#!/bin/bash\n{body}\n").text.endswith(
        f"put in by hpctl sbatch ---\n{kept}\n"
    )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("if a; then\n  exec srun x\nfi\n", "job.sh:3: `exec` replaces the shell"),
        ("trap 'rm -rf tmp' EXIT\nsrun x\n", "job.sh:2: this EXIT trap replaces hpctl's"),
    ],
)
def test_options_that_hide_the_end_of_a_run_raise_a_warning(body, says):
    got = submit("", f"#!/bin/bash\n{body}")
    assert next(note for note in got.notes if note.startswith("job.sh:")).startswith(says)
    supervised = submit("", "#!/bin/bash\ntrap x EXIT\nhpctl run -- y\n")
    assert not any(note.startswith("job.sh:") for note in supervised.notes)


def test_spares_are_added_to_the_nodes():
    for options, text, nodes in (
        ("-N 4", RUN, "5"),
        ("--nodes=4-6", RUN, "5-7"),
        ("", RUN.replace("-t", "-N 2 -t"), "3"),
    ):
        got = submit(f"--spares 1 {options}", text)
        assert got.options[-3:-1] == (f"--nodes={nodes}", "--no-kill")
        assert (got.registered.spares, got.registered.supervised) == (1, True)
        assert got.text is not None
        assert "    export HPCTL_SPARES=1\n" in got.text
        assert not any("srun takes all" in each for each in got.warnings)
    assert "--no-kill" not in submit("--spares 1 -k -N 4", RUN).options
    assert any("srun takes all" in each for each in submit("--spares 1 -N4", STEP).warnings)
    assert submit("--spares 0 -N4", RUN).options[-1].endswith('{"supervised":true}')


def test_a_range_of_nodes_is_the_policys_elastic_range():
    got = submit("-N 6-8", RUN)
    assert got.registered.policy == {"nodes": "6-8"}
    got = submit("-N 6-8", RUN, policy={"nodes": "7-8"})
    assert got.registered.policy == {"nodes": "7-8"}


@pytest.mark.parametrize(("options", "text", "signal"), CASES["save signals"])
def test_a_save_is_asked_for_before_the_time_limit(options, text, signal):
    added = [w for w in submit(f"--checkpoint-dir /c {options}", text).options if "--signal" in w]
    assert added == ([signal] if signal else ["--signal=USR2@5"] if options else [])


def test_everything_is_registered():
    got = submit(
        "--checkpoint-dir /c --tier local:n/{job_id} --tier s3://b-1/p/ --save-signal USR2 -N2"
        " --spares 1",
        RUN,
        policy={"restarts": 3},
    )
    ticket = json.loads(got.options[-1].partition("=hpctl:")[2])
    assert ticket == {
        "ckpt": "/c", "tiers": ["local:/home/u/n/{job_id}", "s3://b-1/p"],
        "policy": {"restarts": 3}, "spares": 1, "save_signal": "USR2", "supervised": True,
    }  # fmt: skip
    assert got.registered.fields() == ticket
    assert parse_registration_comment(got.options[-1].partition("=")[2]) == got.registered


def test_a_comment_that_slurm_would_not_take_is_refused():
    error = refused("--checkpoint-dir /" + "c" * 1010, RUN)
    assert "Slurm allows 1024" in str(error)
    error = refused(f"--checkpoint-dir /c --comment {'x' * 1010}", RUN)
    assert "1010 of them your --comment" in str(error)
