"""Score hpctl's verdicts on runs: `python -m tests.jobs.verdict_corpus.score PLACE...`."""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from hpctl.jobs.run.post_mortem import diagnose_job_run_end
from hpctl.vocabulary.failure import FailureCause, FailureVerdict
from hpctl.vocabulary.run_policy import RunPolicy
from tests.fakes.values import T0
from tests.jobs.verdict_corpus.evidence import list_rank_nodes, read_case, read_remains
from tests.jobs.verdict_corpus.pack import load_truth, read_archive, read_run


class Score(Struct, frozen=True):
    """One run's verdict beside its truth. `node_fault`: it blames a node's hardware wrongly."""

    name: str
    kind: str
    cause_right: bool
    rank_right: bool
    node_fault: bool
    said: str
    truth: str


def score_run(name: str, files: Mapping[str, bytes]) -> Score:
    """Return the score of one run."""
    truth = load_truth(files)
    with tempfile.TemporaryDirectory() as folder:
        remains = read_remains(files, Path(folder))
        verdict = diagnose_job_run_end(remains, RunPolicy(), T0).verdict
    expected = f"{truth['cause']}, rank {truth['rank']} on {truth['node']}"
    if verdict is None:
        return Score(name, str(truth["kind"]), False, False, False, "no verdict", expected)
    accepted = truth["accepted"]
    assert isinstance(accepted, list)
    nodes = list_rank_nodes(read_case(files))
    said = f"{verdict.cause.value}, rank {verdict.rank} on {verdict.node}: {verdict.reasons[:1]}"
    return Score(
        name=name,
        kind=str(truth["kind"]),
        cause_right=verdict.cause.value in accepted,
        rank_right=is_rank_right(verdict, truth, nodes),
        node_fault=is_node_fault(verdict, truth),
        said=said,
        truth=expected,
    )


def is_rank_right(
    verdict: FailureVerdict, truth: Mapping[str, object], nodes: Mapping[int, str]
) -> bool:
    """Return whether the culprit is named. Where a node is the culprit, each of its ranks is right,
    and so is no rank: what ranks leave of a cut network does not say whose link it was."""
    if truth["rank"] is not None:
        return verdict.rank == truth["rank"]
    if verdict.rank is not None:
        return nodes.get(verdict.rank) == truth["node"]
    return verdict.node in (None, truth["node"])


def is_node_fault(verdict: FailureVerdict, truth: Mapping[str, object]) -> bool:
    """Return whether the verdict takes a sound node out: for its own fault, or for its link."""
    if verdict.cause is FailureCause.NODE:
        return True
    if verdict.cause is not FailureCause.LINK or verdict.node is None:
        return False
    return truth["kind"] != "network_cut" or verdict.node != truth["node"]


def score_runs(runs: Mapping[str, Mapping[str, bytes]]) -> list[Score]:
    """Return the scores of runs, in the order of their names."""
    return [score_run(name, files) for name, files in sorted(runs.items())]


def share(flags: Iterable[bool]) -> float:
    """Return which share is true; 1 of nothing is none."""
    listed = list(flags)
    return sum(listed) / len(listed) if listed else 0.0


def format_table(scores: Sequence[Score]) -> str:
    """Return the table of some runs: a row for each kind, and what was wrong."""
    lines = [f"{'kind':20} runs  cause  rank  false node fault"]
    for kind in sorted({one.kind for one in scores}):
        lines.append(_format_row(kind, [one for one in scores if one.kind == kind]))
    lines.append(_format_row("all", scores))
    for one in scores:
        if not (one.cause_right and one.rank_right) or one.node_fault:
            lines.append(f"{one.name}: said {one.said[:200]}; truth: {one.truth}")
    return "\n".join(lines)


def _format_row(title: str, scores: Sequence[Score]) -> str:
    causes = sum(one.cause_right for one in scores)
    ranks = sum(one.rank_right for one in scores)
    faults = sum(one.node_fault for one in scores)
    return f"{title:20} {len(scores):4} {causes:6} {ranks:5} {faults:5}"


def read_runs(path: Path) -> dict[str, dict[str, bytes]]:
    """Return the runs of an archive, or of a folder that the runner wrote."""
    if path.is_file():
        return read_archive(path)
    folders = sorted(found.parent for found in path.glob("*/run.json"))
    return {folder.name: read_run(folder) for folder in folders}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("places", nargs="+", type=Path, help="an archive, or a folder of runs")
    for place in parser.parse_args().places:
        print(f"{place}\n{format_table(score_runs(read_runs(place)))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
