"""sbatch's command line is read as sbatch reads it."""

from __future__ import annotations

import pytest

from hpctl.errors import HpctlError
from hpctl.jobs.sbatch_options import parse_command_line


@pytest.mark.parametrize(
    ("words", "script", "arguments"),
    [
        ("job.sh", "job.sh", ()),
        ("-N 2 job.sh -N 3", "job.sh", ("-N", "3")),
        ("-N2 job.sh", "job.sh", ()),
        ("--nodes 2 --exclusive job.sh --parsable", "job.sh", ("--parsable",)),
        ("--nodes=2 --nice job.sh", "job.sh", ()),
        ("--nice=5 -vHW -o out job.sh", "job.sh", ()),
        ("-vN 2 job.sh", "job.sh", ()),
        ("--job-n x job.sh", "job.sh", ()),
        ("-k job.sh", "job.sh", ()),
        ("--requeue=expedite job.sh", "job.sh", ()),
        ("-- -weird.sh x", "-weird.sh", ("x",)),
        ("--checkpoint-dir /c -J a job.sh --dry-run", "job.sh", ("--dry-run",)),
        ("--brand-new=5 job.sh", "job.sh", ()),
        ("-N1 : -N2 job.sh", "job.sh", ()),
        ("--wrap hostname", None, ()),
        ("--wra=hostname -N1", None, ()),
        ("--tier /a --tier=s3://b/c --no-resume job.sh", "job.sh", ()),
        ("", None, ()),
    ],
)
def test_the_script_is_found(words: str, script: str | None, arguments: tuple[str, ...]) -> None:
    line = parse_command_line(words.split())
    assert (line.script, line.arguments) == (script, arguments)


def test_words_go_through_untouched_but_hpctls_own() -> None:
    words = ["-N2", "--checkpoint-dir=/c", "--mem", "3G", "--dry-run", "-J", "a b", "job.sh", "x"]
    line = parse_command_line(words)
    assert line.passed == ("-N2", "--mem", "3G", "-J", "a b")
    assert {name: [each.value for each in said] for name, said in line.own.items()} == {
        "checkpoint-dir": ["/c"],
        "dry-run": [""],
    }
    assert line.given == {"nodes": "2", "mem": "3G", "job-name": "a b"}


def test_what_is_wrapped_is_kept_apart() -> None:
    line = parse_command_line(["-N2", "--wrap", "srun a b", "--mem=3G"])
    assert line.passed == ("-N2", "--mem=3G")
    assert line.given["wrap"] == "srun a b"


def test_abbreviations_count() -> None:
    assert "requeue" in parse_command_line(["--requ"]).given
    assert "open-mode" in parse_command_line(["--open", "truncate"]).given
    assert parse_command_line(["--nt", "2"]).given == {"nt": ""}  # ambiguous: sbatch will say so


@pytest.mark.parametrize("typo", ["--checkpoint-dri", "--chekpoint-dir=/c", "--dryrun"])
def test_hpctls_own_typos_are_not_sbatchs_business(typo: str) -> None:
    with pytest.raises(HpctlError) as caught:
        parse_command_line([typo, "job.sh"])
    assert "Did you mean" in caught.value.hint


@pytest.mark.parametrize("words", [["--checkpoint-dir"], ["--checkpoint-dir="]])
def test_a_missing_value_is_named(words: list[str]) -> None:
    with pytest.raises(HpctlError, match="needs a value"):
        parse_command_line(words)
