"""NCCL's own witnesses, flight recorder and RAS, where a rank misses or mismatches a collective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from tests.gpu.context import Context
    from tests.gpu.stories import Story
    from tests.gpu.training.ranks import Rank

TITLE = "NCCL: flight recorder and RAS"
LIMIT_S = 75
DRY_LIMIT_S = 100
SIDE_BY_SIDE = True
NEEDS = frozenset({"gpu", "torch", "py-spy"})


@dataclass(frozen=True)
class Case:
    """One way in which a collective goes wrong. `name` is that of the recordings."""

    name: str
    kind: str
    world: int
    on_gloo: bool = False
    """gloo knows it too: what a dry run tries."""


CASES = (
    Case("nccl_skip", "skip", 2, on_gloo=True),
    Case("nccl_skip3", "skip", 3),
    Case("nccl_shape", "shape", 3),
    Case("nccl_order", "order", 3),
    Case("nccl_kill", "kill", 2),
)
FIRST_JOB, FIRST_PORT = 7750, 28101
TIMEOUT_S, DRY_TIMEOUT_S = 16, 6
HEARTBEAT_S = 10
"""How long a rank lives on after the timeout, in which it dumps."""
ENDS_S = TIMEOUT_S + HEARTBEAT_S + 20.0
"""By then the watchdog has ended every rank that waits. A mismatched shape may go unnoticed."""
RECORDER = {
    "TORCH_FR_BUFFER_SIZE": "2000",
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    "TORCH_NCCL_ENABLE_MONITORING": "1",
    "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": str(HEARTBEAT_S),
    "NCCL_DEBUG": "WARN",
    "NCCL_HOSTID": "host{rank}",
}
"""Names of torch 2.11 and of earlier releases. NCCL takes several ranks on one GPU where each says
that it is on a host of its own."""
DUMP = "nccl_trace_rank_"


def run(context: Context) -> None:
    """Run the cases side by side."""
    from functools import partial

    from tests.gpu.stories import Story, tell_side_by_side

    stories = {}
    for number, case in enumerate(CASES):
        story = Story(
            f"recorder/{case.name}",
            "while the ranks wait, RAS and stacks name the culprit; every rank that lives dumps"
            if case.kind != "kill"
            else "every rank that lives dumps, and the end is called the loss of a peer",
        )
        stories[story] = partial(play, context=context, case=case, number=number)
    tell_side_by_side(context, stories, len(CASES))


def play(story: Story, *, context: Context, case: Case, number: int) -> None:
    """Start the ranks, ask the witnesses while they wait, and keep what they leave."""
    from tests.gpu.training.collectives import find_culprit
    from tests.gpu.training.ranks import COLLECTIVES, kill_all, start_ranks

    if context.dry and not case.on_gloo:
        story.skip("needs a GPU")
        return
    folder = context.scratch / case.name
    dumps = folder / "dumps"
    dumps.mkdir(parents=True)
    port, job = FIRST_PORT + number, FIRST_JOB + number
    environment = {
        **RECORDER,
        "NCCL_RAS_ADDR": f"localhost:{port}",
        "TORCH_FR_DUMP_TEMP_FILE": f"{dumps}/{DUMP}",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{dumps}/{DUMP}",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{folder}/pipe_",
        "GROUP_TIMEOUT_S": str(DRY_TIMEOUT_S if context.dry else TIMEOUT_S),
    }
    device, backend = ("cpu", "gloo") if context.dry else ("cuda", "nccl")
    words = [COLLECTIVES, case.kind, backend, folder, device]
    ranks = start_ranks(context, folder, case.world, words, job=job, environment=environment)
    try:
        _follow(story, context, case, folder, ranks, port, job, find_culprit(case.world))
    finally:
        kill_all(ranks)
        for rank in ranks:
            context.keep(f"nccl/{case.name}.{rank.name}.stderr", rank.err)
        for dump in sorted(dumps.iterdir()):
            context.keep(f"nccl/{case.name}.{dump.name}.pickle", dump.read_bytes())


def _follow(
    story: Story,
    context: Context,
    case: Case,
    folder: Path,
    ranks: list[Rank],
    port: int,
    job: int,
    culprit: int,
) -> None:
    import time

    from tests.gpu.training.looks import wait_until_hung
    from tests.gpu.training.verdicts import classify, label_lines

    why = wait_until_hung(folder, ranks, culprit, min(60.0, context.left_s() - 30.0))
    if why and case.kind != "kill":
        story.held, story.observed = False, why
        return
    hung_at = time.monotonic()
    time.sleep(1.5)
    checks = _ask_witnesses(story, context, case, ranks, port, job, culprit)
    others = [rank for number, rank in enumerate(ranks) if number != culprit]
    for rank in others:
        rank.wait(min(ENDS_S, context.left_s() - 4.0))
    story.figures["ended_after_s"] = round(time.monotonic() - hung_at, 1)
    time.sleep(0.5)
    alive = (
        range(case.world) if case.kind != "kill" else [r for r in range(case.world) if r != culprit]
    )
    dumps = {file.name: file.read_bytes() for file in (folder / "dumps").iterdir()}
    if not context.dry:
        checks["dumps"] = set(dumps) == {f"{DUMP}{rank}" for rank in alive}
    text = "\n".join(label_lines(rank.err, number) for number, rank in enumerate(ranks))
    said = classify(others[0].code, text)
    if case.kind == "kill" or context.dry:
        checks["the end is a network's or a peer's"] = said["kind"] in ("network", "hang")
    story.facts |= {
        "culprit": culprit,
        "codes": [rank.code for rank in ranks],
        "dumps": {name: summarize_dump(raw) for name, raw in dumps.items()},
        "said_of_the_log_alone": said,
    }
    story.conclude(
        checks, f"{story.facts['witness']}; of the log alone: {said['kind']}: {said['why']}"
    )


def _ask_witnesses(
    story: Story, context: Context, case: Case, ranks: list[Rank], port: int, job: int, culprit: int
) -> dict[str, bool]:
    """Ask RAS and stacks; return what must be true of their answers."""
    from hpctl.toolkit.errors import HpctlError
    from tests.gpu.training.looks import judge_by_ras, look_at_stacks, names_only, talk_to_ras

    checks: dict[str, bool] = {}
    story.facts["witness"] = "nobody was asked"
    if not context.dry:
        for form in ("json", "text"):
            try:
                raw = talk_to_ras(port, as_json=form == "json")
            except OSError as error:
                raw = str(error).encode()
                checks[f"RAS answers in {form}"] = False
            context.keep(f"nccl/{case.name}.ras.{form}", raw)
    if case.kind == "kill":
        return checks
    if all(rank.code is None for rank in ranks):
        stacks = look_at_stacks(job, case.world, native=not context.dry)
        story.facts["stacks"] = stacks
        story.facts["witness"] = stacks["text"]
        story.figures["stacks_s"] = stacks["took_s"]
        if case.kind != "shape":  # there every rank stands in the same call
            checks["named by stacks"] = names_only(stacks, culprit)
    if not context.dry:
        try:
            finding = judge_by_ras(port, apart_s=3.0)
        except HpctlError as error:
            finding = {"error": str(error), "ranks": [], "why": str(error)}
        story.facts["ras"] = finding
        story.facts["witness"] += f"; RAS: {finding['why']}"
        if case.kind == "skip":
            checks["named by RAS"] = finding["ranks"] == [culprit]
    return checks


def summarize_dump(raw: bytes) -> dict[str, Any]:
    """Return the last collective of a dump, and how many there are in which state.

    The dump is a pickle of plain values, which torch has written in this run.
    """
    import pickle
    from collections import Counter

    try:
        dump = pickle.loads(raw)
    except Exception as error:  # noqa: BLE001 -- a dump that was cut off is a result, too
        return {"error": repr(error)[:200]}
    entries = dump.get("entries", [])
    summary: dict[str, Any] = {
        "version": dump.get("version"),
        "states": dict(Counter(str(entry.get("state")) for entry in entries)),
    }
    if entries:
        keys = ("profiling_name", "collective_seq_id", "input_sizes", "state")
        summary["last"] = {key: entries[-1].get(key) for key in keys}
    return summary
