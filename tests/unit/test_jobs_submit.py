"""What hpctl sbatch decides, from values."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from hpctl.errors import HpctlError
from hpctl.jobs import sbatch_options as scripts
from hpctl.jobs.job_comment import decode
from hpctl.jobs.sbatch_options import hpctl_options, parse_command_line
from hpctl.jobs.submit import Submission, checkpoint_dir, plan
from hpctl.jobs.submit_context import Runtime, SubmitContext

PLAIN = "#!/bin/bash\n#SBATCH -N 2\n\n# a remark\necho hello\n# later\n"


def submit(
    words: str = "", text: str = PLAIN, environment: dict[str, str] | None = None, **around: Any
) -> Submission:
    typed = shlex.split(words)
    line = parse_command_line(
        typed if any(word.startswith("--wrap") for word in typed) else [*typed, "job.sh"]
    )
    script = None if "wrap" in line.given else scripts.read("job.sh", text)
    asked = hpctl_options(line.own, script.own if script else {}, "/home/u")
    return plan(line, script, asked, SubmitContext(Runtime("/py"), environment or {}, **around))


def refused(words: str = "", text: str = PLAIN) -> HpctlError:
    with pytest.raises(HpctlError) as caught:
        submit(words, text)
    return caught.value


def test_with_a_directory() -> None:
    got = submit("--checkpoint-dir /c/run -N1")
    assert got.options == (
        "--requeue",
        "--open-mode=append",
        "-N1",
        '--comment=hpctl:{"ckpt":"/c/run"}',
    )
    assert got.bases == ("/c/run",)
    head, _, rest = got.text.partition("# --- begin: put in by hpctl")
    assert head == "#!/bin/bash\n#SBATCH -N 2\n\n# a remark\n"
    assert rest.endswith("# --- end: put in by hpctl sbatch ---\necho hello\n# later\n")


@pytest.mark.parametrize(
    ("words", "text", "environment", "absent"),
    [
        ("--requeue", PLAIN, {}, "--requeue"),
        ("", "#!/bin/sh\n#SBATCH --no-requeue\nx\n", {}, "--requeue"),
        ("", PLAIN, {"SBATCH_NO_REQUEUE": "1"}, "--requeue"),
        ("--open-mode truncate", PLAIN, {}, "--open-mode=append"),
        ("", "#!/bin/sh\n#SBATCH --open-mode=truncate # mine\nx\n", {}, "--open-mode=append"),
        ("", PLAIN, {"SBATCH_OPEN_MODE": "t"}, "--open-mode=append"),
    ],
)
def test_what_the_user_set_is_left(
    words: str, text: str, environment: dict[str, str], absent: str
) -> None:
    added = submit(words, text, environment).options[: -len(words.split()) or None]
    assert absent not in added
    assert len(added) == 1
    assert not any(absent in note for note in submit(words, text, environment).notes)


@pytest.mark.parametrize(
    ("words", "environment", "warned"),
    [
        ("--export=ALL,HPCTL_RESUME=scratch", {}, True),
        ("--export=HPCTL_RESUME=scratch", {}, True),
        ("", {"HPCTL_RESUME": "scratch"}, True),
        ("", {"SBATCH_EXPORT": "A,HPCTL_RESUME", "HPCTL_RESUME": "scratch"}, True),
        ("--export=NONE", {"HPCTL_RESUME": "scratch"}, False),
        ("--export=ALL,HPCTL_RESUME=", {"HPCTL_RESUME": "scratch"}, False),
        ("", {}, False),
    ],
)
def test_a_wish_to_begin_anew_holds_longer_than_one_thinks(
    words: str, environment: dict[str, str], warned: bool
) -> None:
    said = submit(f"--checkpoint-dir /c {words}", environment=environment).warnings
    assert any("holds for every start" in each for each in said) == warned


def test_the_users_comment_stays_behind_the_registration() -> None:
    for words, text in (
        ("--comment='my own'", PLAIN),
        ("", "#!/bin/sh\n#SBATCH --comment 'my own'\n"),
    ):
        got = submit(f"--checkpoint-dir /c {words}", text)
        comment = got.options[-1].partition("=")[2]  # after theirs: of two, sbatch takes the last
        assert comment == 'hpctl:{"ckpt":"/c"} my own'
        assert checkpoint_dir(comment) == "/c"
        assert any("your --comment stands after" in note for note in got.notes)
    # sbatch reads no variable of this name (seen on 22.05.8).
    got = submit("--checkpoint-dir /c", environment={"SBATCH_COMMENT": "x"})
    assert got.options[-1].endswith('{"ckpt":"/c"}')


def test_the_comment_is_read_back() -> None:
    got = submit("--checkpoint-dir /c/{job_id}")
    comment = next(w for w in got.options if w.startswith("--comment=")).partition("=")[2]
    assert checkpoint_dir(comment) == "/c/{job_id}"
    assert checkpoint_dir(comment + " held: no budget") == "/c/{job_id}"
    for other in ("", "mine", "hpctl:", "hpctl:{", "hpctl:[]", 'hpctl:{"ckpt":1}'):
        assert checkpoint_dir(other) is None
    assert json.loads(comment.removeprefix("hpctl:")) == {"ckpt": "/c/{job_id}"}


def test_the_directive_and_the_command_line_over_it() -> None:
    text = "#!/bin/sh\n#HPCTL --checkpoint-dir '/c/a b' # here\ntrue\n"
    assert submit("", text).bases == ("/c/a b",)
    assert submit("--checkpoint-dir /other", text).bases == ("/other",)
    assert submit("", text.replace("-dir ", "-dir=")).bases == ("/c/a b",)


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("#HPCTL --checkpont-dir /c", "Did you mean --checkpoint-dir?"),
        ("#HPCTL", "hpctl knows --checkpoint-dir, --tier"),
        ("#HPCTL checkpoint-dir=/c", "Did you mean --checkpoint-dir?"),
        ("#HPCTL --checkpoint-dir", "Write"),
        ("#HPCTL --checkpoint-dir $HOME/c", "Write it out"),
        ("#HPCTL --spare 1", "Did you mean --spares?"),
        ("#HPCTL --dry-run", "Give --dry-run there"),
        ("#HPCTL --no-resume=1", "Write #HPCTL --no-resume"),
        ("#HPCTL --spares one", "Write a number"),
        ("#HPCTL --spares 1 --save-signal USR3", "Did you mean USR"),
        ("#HPCTL --save-signal USR1@0", "Write USR1@120"),
        ("#HPCTL --save-signal USR1@65536", "at most 65535"),
        ("#HPCTL --tier s3://B", "s3://BUCKET/PREFIX"),
        ("#HPCTL --tier local:", "Write --tier local:/nvme"),
    ],
)
def test_bad_directives_name_the_line_and_the_mend(line: str, hint: str) -> None:
    error = refused("", f"#!/bin/sh\n# one\n{line}\ntrue\n")
    assert str(error).startswith("job.sh:3: ")
    assert hint in error.hint


def test_a_late_directive_is_pointed_at() -> None:
    got = submit("", "#!/bin/sh\ntrue\n#HPCTL --checkpoint-dir /c\n")
    assert got.text is None
    assert any(each.startswith("job.sh:3: #HPCTL after the first") for each in got.warnings)


@pytest.mark.parametrize(
    ("words", "text", "message", "hint"),
    [
        ("-N1 : -N2", PLAIN, "heterogeneous", "plain sbatch"),
        ("", "#!/bin/sh\n#SBATCH hetjob\ntrue\n", "heterogeneous", "plain sbatch"),
        ("", "#!/usr/bin/env -S python3 -u\nx\n", "python3 script", "#!/bin/sh"),
        ("", "#!/bin/tcsh\nx\n", "tcsh script", "#!/bin/sh"),
        ("", "echo\n", "no #! line", "#!/bin/sh"),
        ("--array=0-3", PLAIN, "share one checkpoint directory", "{array_task_id}"),
        ("", "#!/bin/sh\n#SBATCH -a 1-2\nx\n", "share one", "{array_task_id}"),
    ],
)
def test_what_cannot_resume_is_refused(words: str, text: str, message: str, hint: str) -> None:
    error = refused(f"--checkpoint-dir /c {words}", text)
    assert message in str(error)
    assert hint in error.hint


def test_placeholders_are_checked() -> None:
    assert "Did you mean {job_id}?" in refused("--checkpoint-dir /c/{jobid}").hint
    assert "no job array" in str(refused("--checkpoint-dir /c/{array_task_id}"))
    assert submit("--array 1-2 --checkpoint-dir /c/{array_task_id}").bases == ("/c",)


@pytest.mark.parametrize(
    ("first", "shell"),
    [
        ("#!/bin/bash", "bash"),
        ("#! /bin/sh -eu", "sh"),
        ("#!/usr/bin/env bash", "bash"),
        ("#!/usr/bin/env -S X=1 bash -l", "bash"),
        ("#!", ""),
        ("echo", ""),
        ("", ""),
    ],
)
def test_the_shell_is_seen(first: str, shell: str) -> None:
    assert scripts.read("job.sh", first + "\n").shell == shell


@pytest.mark.parametrize("odd", ["\f", "\v", "\x85", "\N{LINE SEPARATOR}", "\x1c"])
def test_only_a_newline_ends_a_line(odd: str) -> None:
    # Form feeds are in old scripts, and line separators in what was pasted from a web page.
    script = scripts.read("j", f"#!/bin/sh\n# one{odd}two\n#SBATCH -N4\ntrue\n")
    assert script.given == {"nodes": "4"}
    text = f"#!/bin/sh\n# one{odd}two\n#SBATCH -N4\nx\ntrue\n"
    assert script.with_inserted("x\n") == text


def test_wrap_becomes_a_script() -> None:
    got = submit("--checkpoint-dir /c --wrap 'srun a b' -N2")
    assert got.options[:3] == ("--requeue", "--open-mode=append", "-N2")
    assert not any("wrap" in word for word in got.options)
    assert got.copy.name == "wrap"
    head, _, rest = got.copy.text.partition("# --- begin")
    assert head == "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n"
    assert rest.endswith("\nsrun a b\n")
    plain = submit("-N2 --wrap 'srun a b'")
    assert plain.copy is None
    assert plain.options[-2:] == ("-N2", "--wrap=srun a b")


RUN = "#!/bin/sh\n#SBATCH -t 60\nhpctl run -- python train.py\n"
STEP = "#!/bin/sh\n#SBATCH -t 60\nsrun python train.py\n"


def test_spares_are_added_to_the_nodes() -> None:
    for words, text, nodes in (
        ("-N 4", RUN, "5"),
        ("--nodes=4-6", RUN, "5-7"),
        ("", RUN.replace("-t", "-N 2 -t"), "3"),
    ):
        got = submit(f"--spares 1 {words}", text)
        assert got.options[-3:-1] == (f"--nodes={nodes}", "--no-kill")
        assert (got.registered.spares, got.registered.supervised) == (1, True)
        assert got.text is not None
        assert "    export HPCTL_SPARES=1\n" in got.text
        assert not any("srun takes all" in each for each in got.warnings)
    assert "--no-kill" not in submit("--spares 1 -k -N 4", RUN).options
    assert any("srun takes all" in each for each in submit("--spares 1 -N4", STEP).warnings)
    assert submit("--spares 0 -N4", RUN).options[-1].endswith('{"supervised":true}')


def test_a_range_of_nodes_is_the_policys_elastic_range() -> None:
    got = submit("-N 6-8", RUN)
    assert got.registered.policy == {"nodes": "6-8"}
    got = submit("-N 6-8", RUN, policy={"nodes": "7-8"})
    assert got.registered.policy == {"nodes": "7-8"}


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ("--spares 1", "needs a number of nodes", "--nodes N"),
        ("--spares 1 -N 4 -n 4", "take the spares away", "--ntasks-per-node"),
        ("--spares 1 -N 4 --no-kill=off", "--no-kill=off", "hpctl sets it"),
        ("--save-signal USR1 --signal=B:TERM@5", "both ask", "Leave --signal out"),
        ("--tier s3://bucket/x", "--tier names further places", "--checkpoint-dir"),
        ("--checkpoint-dir /c --tier /n/{job}", "unknown placeholder", "job_id"),
    ],
)
def test_what_does_not_fit_together(words: str, message: str, hint: str) -> None:
    error = refused(words, RUN)
    assert message in str(error)
    assert hint in error.hint


@pytest.mark.parametrize(
    ("words", "text", "signal"),
    [
        ("", RUN, "--signal=B:USR1@120"),
        ("--save-signal TERM@300", RUN, "--signal=B:USR1@300"),
        ("--save-signal USR2", STEP, "--signal=USR2@120"),
        ("--save-signal usr1@9", "#!/bin/sh\nexec python x.py\n", "--signal=B:USR1@9"),
        ("--save-signal SIGUSR1", STEP, "--signal=USR1@120"),
        ("--save-signal 10", STEP, "--signal=USR1@120"),
        ("", STEP, None),
        ("", RUN.replace("#SBATCH -t 60\n", ""), None),
        ("--signal=USR2@5", RUN, None),
    ],
)
def test_a_save_is_asked_for_before_the_time_limit(
    words: str, text: str, signal: str | None
) -> None:
    added = [w for w in submit(f"--checkpoint-dir /c {words}", text).options if "--signal" in w]
    assert added == ([signal] if signal else ["--signal=USR2@5"] if words else [])


def test_everything_is_registered() -> None:
    got = submit(
        "--checkpoint-dir /c --tier local:n/{job_id} --tier s3://b-1/p/ --save-signal USR2 -N2"
        " --spares 1",
        RUN,
        policy={"restarts": 3},
    )
    ticket = json.loads(got.options[-1].partition("=hpctl:")[2])
    assert ticket == {
        "ckpt": "/c",
        "tiers": ["local:/home/u/n/{job_id}", "s3://b-1/p"],
        "policy": {"restarts": 3},
        "spares": 1,
        "save_signal": "USR2",
        "supervised": True,
    }
    assert got.registered.fields() == ticket
    assert decode(got.options[-1].partition("=")[2]) == got.registered


def test_a_comment_that_slurm_would_not_take_is_refused() -> None:
    error = refused("--checkpoint-dir /" + "c" * 1010, RUN)
    assert "Slurm takes 1024" in str(error)
    error = refused(f"--checkpoint-dir /c --comment {'x' * 1010}", RUN)
    assert "1010 of them your --comment" in str(error)
