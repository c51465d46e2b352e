"""Failures of the corpus as real steps: `hpctl run` and the end of a script say of each
what `diagnose_job_run_end` says of what it left.

A rank prints what the recorded rank printed, writes its dump, and ends as it did, in that order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpctl.jobs.run import srun
from hpctl.jobs.run.output import remove_hpctl_output_lines
from hpctl.jobs.run.post_mortem import RunEndEvidence, RunEndVerdict, diagnose_job_run_end
from hpctl.jobs.verdict import build_run_failure_verdict
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.failure import FailureVerdict
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.run_policy import RunAction, RunPolicy
from hpctl.vocabulary.trouble import Trouble
from tests.jobs.run.test_run_live import Job
from tests.jobs.verdict_corpus.evidence import PREFIX, shell_code
from tests.jobs.verdict_corpus.pack import archive_of, load_truth, read_archive
from tests.live import until
from tests.sandbox.test_training import ROOT

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

RUNS = read_archive(archive_of("first"))
NOW = datetime.now(UTC)
ENDED = (
    "exception-2", "device_memory-2", "killed-1", "disk_full-1", "dead_loader-1",
    "skipped_collective-2", "wrong_shape-1",
)  # fmt: skip
HUNG = "skipped_collective-1"
BETWEEN_S = 0.15
"""Seconds between the ends of two ranks: `hpctl run` ends the others 0.7 s after the first."""
POLL_S = 0.02
"""Seconds between a rank's looks at what the others have done."""
POLICY = "restarts: 0\nhang_floor_s: 3\nhang_start_s: 20\n"
RANK = """#!/bin/sh
case=%s
echo "$SLURMD_NODENAME" > "$case/node-$SLURM_PROCID"
if [ -e "$case/flight/%s$SLURM_PROCID" ]; then
    cp "$case/flight/%s$SLURM_PROCID" "$TORCH_FR_DUMP_TEMP_FILE$SLURM_PROCID"
fi
. "$case/rank-$SLURM_PROCID"
"""


def write_case(folder: Path, name: str) -> Path:
    """Write what the ranks of a recorded run say and how they end; return their program."""
    files = RUNS[name]
    (folder / "flight").mkdir(parents=True)
    for file, raw in files.items():
        if file.startswith(("flight/", "task-")):
            (folder / file).write_bytes(raw)
    record = json.loads(files["run.json"])
    world = count_ranks(name)
    for rank in range(world):
        (folder / f"rank-{rank}").write_text(write_rank(folder, record, rank, world))
    program = folder / "rank.sh"
    program.write_text(RANK % (folder, PREFIX, PREFIX))
    program.chmod(0o755)
    (folder / "policy.yaml").write_text(POLICY)
    return program


def count_ranks(name: str) -> int:
    return sum(json.loads(RUNS[name]["case.json"])["nodes"])


def write_rank(folder: Path, record: Mapping[str, Any], rank: int, world: int) -> str:
    """The lines of shell that one rank runs."""
    if record["hung"]:
        steps = "echo hpctl-progress step=1\nsleep 1\necho hpctl-progress step=2\n"
        return f"{steps}exec {sys.executable} -c 'import time; time.sleep(600)'\n"
    ended = [end["task"] for end in record["ends"][: record["ended_alone"]]]
    says = f"cat {folder}/task-{rank}.log >&2\ntouch {folder}/said-{rank}\n"
    if rank not in ended:
        return f"{says}exec sleep 600\n"
    place = ended.index(rank)
    code = record["ends"][place]["code"]
    end = f"kill -{-code} $$\nsleep 9\n" if code < 0 else f"exit {code}\n"
    if place:
        turn = wait_for_file(folder / f"ending-{place - 1}")
    else:
        # Every rank has said what it says before the first one ends.
        turn = "".join(wait_for_file(folder / f"said-{other}") for other in range(world))
    return f"{says}{turn}sleep {BETWEEN_S}\ntouch {folder}/ending-{place}\n{end}"


def wait_for_file(path: Path) -> str:
    """Return the shell that waits for a file: nodes do not launch their ranks together."""
    return f"until [ -e {path} ]; do sleep {POLL_S}; done\n"


def judge_left(folder: Path, log: str, dumps: str, name: str) -> RunEndVerdict:
    """The verdict by what a run left: its log, with srun's lines, and its dumps."""
    block = remove_hpctl_output_lines(log.encode())
    ends = [one for one in srun.parse_srun_lines(block) if isinstance(one, srun.SrunTaskEnd)]
    record = json.loads(RUNS[name]["run.json"])
    world = count_ranks(name)
    left = RunEndEvidence(
        exit_code=max((shell_code(end["code"]) for end in record["ends"]), default=1),
        tail=block.decode(errors="replace").splitlines(),
        ends=ends,
        flight_prefix=dumps,
        world=world,
        rank_nodes={rank: read_node(folder, rank) for rank in range(world)},
        hung=record["hung"],
    )
    return diagnose_job_run_end(left, RunPolicy(restarts=0), NOW)


def read_node(folder: Path, rank: int) -> NodeName:
    return NodeName((folder / f"node-{rank}").read_text().strip())


@pytest.fixture
def job(slurm, shared):
    one = Job(slurm, shared)
    yield one
    slurm.run(["scancel", str(one.id)], check=False)


def run_case(job: Job, name: str) -> tuple[Trouble, RunAction]:
    """Have `hpctl run` simulate a run; return the trouble that it acted on, and its answer."""
    program = write_case(job.dir / name, name)
    run = f"--policy {job.dir}/{name}/policy.yaml"
    job.submit_command(str(program), run=run, nodes=count_ranks(name))
    until(lambda: bool(list_treated(job)), 90, "the end is answered")
    (treated,) = list_treated(job)
    return msgspec.convert(treated["trouble"], Trouble), RunAction(treated["action"])


def list_treated(job: Job) -> list[dict[str, Any]]:
    return [one for one in job.past() if one["type"] == "treated"]


def find_dumps(job: Job) -> str:
    (history,) = job.dir.glob(".local/state/hpctl/*.jsonl")
    return str(history.with_suffix(".1.flight-"))


def describe(found: FailureVerdict) -> tuple[object, ...]:
    return found.cause, found.confidence, found.rank, found.node


@pytest.mark.parametrize("name", ENDED)
def test_hpctl_run_says_what_is_said_of_what_a_run_left(job: Job, name: str) -> None:
    trouble, answer = run_case(job, name)
    verdict = build_run_failure_verdict(trouble, (), {}, RunPolicy(restarts=0), NOW, answer)
    answered = f"{trouble.kind} -> {answer}: "
    until(
        lambda: f" ({verdict.text})" in job.log().partition(answered)[2],
        30,
        "the answer is in the log",
    )
    # What Slurm says of the answer, such as that the job is requeued, is not what the run left.
    log = job.log().partition(answered)[0]
    left = judge_left(job.dir / name, log, find_dumps(job), name)
    assert describe(verdict) == describe(left.verdict), log
    assert trouble.why == left.trouble.why, log
    truth = load_truth(RUNS[name])
    assert (verdict.cause in truth["accepted"], verdict.rank) == (True, truth["rank"]), log


def test_hpctl_run_names_the_rank_of_a_hang_as_what_it_left_does(job: Job) -> None:
    trouble, answer = run_case(job, HUNG)
    verdict = build_run_failure_verdict(trouble, (), {}, RunPolicy(restarts=0), NOW, answer)
    log = job.log().partition(f"{trouble.kind} -> {answer}: ")[0]
    left = judge_left(job.dir / HUNG, log, find_dumps(job), HUNG)
    assert describe(verdict) == describe(left.verdict), log
    named, silence = trouble.why.split("; no step for ")
    assert left.trouble.why == f"{named}; it made no progress"
    assert "since step 2" in silence
    truth = load_truth(RUNS[HUNG])
    assert (verdict.cause in truth["accepted"], verdict.rank) == (True, truth["rank"])


def test_the_end_of_a_script_says_what_is_said_of_what_it_left(job: Job) -> None:
    name = "exception-2"
    program = write_case(job.dir / name, name)
    script = job.dir / "job.sh"
    script.write_text(
        f"#!/bin/bash\n#SBATCH -N{count_ranks(name)} --ntasks-per-node=1\nsrun {program}\n"
    )
    options = ["--parsable", f"--policy={job.dir}/{name}/policy.yaml", f"--output={job.dir}/log"]
    command = [sys.executable, "-m", "hpctl", "sbatch", *options, str(script)]
    env = {"PYTHONPATH": ROOT, "HOME": str(job.dir)}
    done = job.slurm.run(command, env=env, cwd=job.dir)
    job.id = int(done.stdout.split()[-1])
    until(lambda: "the script ended with" in job.log(), 90, "the cause is in the log")
    log = job.log().partition("the script ended with")[0]
    left = judge_left(job.dir / name, log, "", name)
    said = f"{left.trouble.kind}: {left.trouble.why} ({left.verdict.text})"
    assert said in job.log()
    assert left.verdict.rank == load_truth(RUNS[name])["rank"]
