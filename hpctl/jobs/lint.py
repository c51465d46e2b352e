"""What in a script or its options would keep a job from resuming: a warning each, with the mend.

The text is read line by line, not parsed as shell: what is found is worth a look, and what is not
found proves nothing. So nothing here refuses a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hpctl.jobs.said import Said, seconds
from hpctl.jobs.script import Script
from hpctl.jobs.storage import local

REPLACEMENT_S = 30 * 60.0
"""A HyperPod node is replaced in 20 to 30 minutes."""

_SUPERVISED = re.compile(r"\bhpctl['\"]?\s+run\b|\bsrun\b.*\s--resilient\b")
_LAUNCH = re.compile(r"(^|[\s;&|(])(srun|mpirun|mpiexec|torchrun|deepspeed|accelerate\s+launch)\s")
_RDZV = re.compile(
    r"(?:\b(?:MASTER_ADDR|head_node_ip|MASTER_HOST)=|--(?:rdzv[_-]endpoint|master[_-]addr)[=\s]\s*)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^\s;&|]+)"
)
_SRUN_NODES = re.compile(
    r"\bsrun\b.*\s(?:-w\s*|--nodelist[=\s]\s*)(?P<value>[\"']?[A-Za-z0-9][^\s]*)"
)
_AUTO_RESUME = re.compile(r"--auto-resume(?:[=\s]\s*)[\"']?1\b")
HANG_RULES = "HYPERPOD_HANG_RULES"
"""Names the rules of HyperPod's hung-job agent, which watches a job that has it."""
_HANG_RULES = re.compile(rf"\b{HANG_RULES}=[\"']?[^\s\"';]")
_HANG_AGENT = (
    f"{HANG_RULES} is set: HyperPod's hung-job agent may cancel this job, and a job that was"
    " cancelled is not run again; leave it out (`hpctl run` finds hangs, names the rank and"
    " restarts), or have its rules notify only"
)
_HIDDEN = re.compile(r"\|\|\s*(true|:|exit\s+0|echo\b[^;&|]*)\s*$")
_INSIDE = re.compile(r"\$\([^()]*\)|`[^`]*`|'[^']*'|\"[^\"$`]*\"")
"""What is a word to the shell, or runs apart: it has no say in the line's exit code."""
_PIPED = re.compile(r"[^|]\|&?\s*[^|\s]")
_ENDS_WELL = re.compile(
    r"(exit\s+0|true|:|(echo|printf|date|sleep|rm|cp|mv|ls|cat|sync|touch|mkdir|hostname)(\s.*)?)$"
)
_STRICT = re.compile(r"^\s*set\s+(-[a-z]*e|-o\s+errexit|.*\s-o\s+errexit)", re.MULTILINE)
_PIPEFAIL = re.compile(r"^\s*set\s+.*\bpipefail\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Line:
    """A command as far as a line tells: continuations joined, comments left out."""

    number: int
    text: str


def supervised(script: Script | None) -> bool:
    """Whether the script starts its program with `hpctl run`."""
    return script is not None and any(_SUPERVISED.search(line.text) for line in commands(script))


def launches(script: Script | None) -> bool:
    """Whether the script starts job steps (or something else that does)."""
    return script is not None and any(_LAUNCH.search(line.text) for line in commands(script))


def commands(script: Script) -> Iterator[Line]:
    """The lines with commands in them, after the leading comments."""
    held, start = "", 0
    for number, raw in enumerate(script.lines[script.block :], start=script.block + 1):
        text = raw.strip()
        if not held:
            start = number
        if text.endswith("\\"):
            held += text[:-1] + " "
            continue
        text, held = (held + text).strip(), ""
        if text and not text.startswith("#"):
            yield Line(start, text)
    if held.strip():
        yield Line(start, held.strip())


def of_text(script: Script) -> list[str]:
    """What the script's own lines would break."""
    found: list[str] = []
    lines = list(commands(script))
    for line in lines:
        found += [f"{script.name}:{line.number}: {said}" for said in _of_line(line.text, script)]
    return found + [
        f"{script.name}:{number}: {said}" for number, said in _at_the_end(lines, script)
    ]


def _of_line(text: str, script: Script) -> Iterator[str]:
    pinned = _RDZV.search(text)
    if pinned and (host := _literal(pinned["value"])):
        yield (
            f"the rendezvous is pinned to {host}, which may be the node that is lost; take the"
            " first of the nodes that the job has: $(scontrol show hostnames | head -n 1)"
        )
    if (pinned := _SRUN_NODES.search(text)) and (host := _literal(pinned["value"])):
        yield f"this step is pinned to {host}, which may be the node that is lost; leave -w out"
    if _AUTO_RESUME.search(text):
        yield (
            "--auto-resume=1 is HyperPod's own: it would replace nodes and requeue the job while"
            " hpctl does the same; leave it out"
        )
    if _HANG_RULES.search(text):
        yield _HANG_AGENT
    text = _INSIDE.sub("_", text)
    if not (_LAUNCH.search(text) or _SUPERVISED.search(text)):
        return
    if _HIDDEN.search(text):
        yield "hides the exit code of what it starts: a crash would look like success"
    elif _PIPED.search(text) and not _PIPEFAIL.search(script.text):
        yield (
            "of a pipe the shell keeps the last command's exit code: a crash would look like"
            " success; add `set -o pipefail` or use --output"
        )


def _literal(value: str) -> str:
    """The host that a value names, "" where it is computed or this very machine."""
    host = value.strip("\"'").partition(":")[0]
    if re.search(r"[$`(]", value) or host in ("", "localhost", "127.0.0.1", "0.0.0.0"):  # noqa: S104
        return ""
    return host


def _at_the_end(lines: list[Line], script: Script) -> Iterator[tuple[int, str]]:
    """An ending that turns every failure before it into exit code 0."""
    started = any(_LAUNCH.search(line.text) or _SUPERVISED.search(line.text) for line in lines)
    if not started or not lines:
        return
    last = lines[-1]
    background = any(re.search(r"[^&]&\s*$", line.text) for line in lines)
    if last.text == "wait" and background:
        yield last.number, "`wait` alone ends with 0 whatever it waited for; write `wait $pid`"
    strict = _STRICT.search(script.text) or re.search(r"^#!.*\s-[a-z]*e", script.lines[0])
    if _ENDS_WELL.match(last.text) and not strict and not _LAUNCH.search(last.text):
        yield (
            last.number,
            f"the script ends with `{last.text[:40]}`, which hides the exit code of what it"
            " started: a crash would look like success; add `set -e` at the top",
        )


def of_options(said: Said, spares: int, *, resumes: bool) -> list[str]:
    """What the options to sbatch would break."""
    found: list[str] = []
    if said.has("no-requeue"):
        found.append(
            "--no-requeue is set: neither Slurm nor hpctl can run this job again; leave it out"
        )
    if (said.value("open-mode") or "").startswith("t"):
        found.append(
            "--open-mode=truncate: each start wipes the log of the run that was lost;"
            " leave it out (hpctl adds append)"
        )
    if said.has("no-kill") and said.value("no-kill") != "off" and not spares:
        found.append(
            "--no-kill without --spares: Slurm no longer requeues this job when a node fails;"
            " leave it out, or add --spares K"
        )
    if pinned := said.value("nodelist") or said.value("nodefile"):
        found.append(
            f"the job is pinned to {pinned}: without one of them it cannot start again;"
            " leave --nodelist out, or use --constraint or --partition"
        )
    limit = seconds(said.value("time") or "")
    if resumes and limit is not None and limit < REPLACEMENT_S and not spares:
        found.append(
            f"--time={said.value('time')} is shorter than a node's replacement"
            f" ({REPLACEMENT_S / 60:g} min): where no spare node is idle, the job may end before"
            " it is whole again; allow more, or add --spares K"
        )
    return found


def of_scratch(export: str | None, environment: Mapping[str, str]) -> list[str]:
    """A wish to begin anew, which stays in the job's environment. `export` is sbatch's."""
    if _of_job("HPCTL_RESUME", export, environment) != "scratch":
        return []
    return [
        "HPCTL_RESUME=scratch holds for every start of this job: after a fault it begins anew too,"
        " whatever it has saved by then; give an empty --checkpoint-dir instead"
    ]


def of_hang_rules(export: str | None, environment: Mapping[str, str]) -> list[str]:
    """Rules for HyperPod's hung-job agent in the job's environment. `export` is sbatch's."""
    return [_HANG_AGENT] if _of_job(HANG_RULES, export, environment) else []


def _of_job(name: str, export: str | None, environment: Mapping[str, str]) -> str:
    """What a variable is in the job's environment; "" where it has none."""
    words = (export or "ALL").split(",")
    told = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    if {"ALL", name} & set(words):
        told.append(environment.get(name, ""))
    return told[0] if told else ""


def of_storage(directory: str, filesystem: str, tiers: tuple[str, ...]) -> list[str]:
    """Places for checkpoints that other nodes cannot read.

    `filesystem` is the type of the one that the checkpoint directory is on, "" where unknown.
    """
    found: list[str] = []
    if f"local:{directory}" not in tiers and (why := local(directory, filesystem)):
        found.append(
            f"{directory} {why}: other nodes would find no checkpoint there;"
            " share it, or name it with --tier local:DIR beside a shared one"
        )
    found += [
        f"--tier {tier} {why}: say --tier local:{tier}"
        for tier in tiers
        if tier.startswith("/") and (why := local(tier, ""))
    ]
    return found
