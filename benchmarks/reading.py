"""What it costs to read Slurm on a large cluster: its commands' text, parsed into nodes and jobs.

The rivals: `json.loads` of the same keys and values, which a program must pay that asks a newer
Slurm with `--json` and then still has to make its own values of them; and splitting every line
at its spaces into a dict, the least that a parser of text can do, and wrong for values that
hold spaces.
"""

import json
import tempfile
from pathlib import Path

from benchmarks import scontrol_text
from benchmarks.table import Outcome, Row, median, seconds_of
from benchmarks.world import CLOCK, World
from hpctl.slurm import parse
from hpctl.slurm.read import SlurmCommandReader
from hpctl.slurm.records import HostlistCache
from hpctl.slurm.run import SlurmCommandRunner

NODES, JOBS = 10_000, 1_000
RUNS = 7


def run() -> Outcome:
    """Parsing alone, then the whole read: two commands side by side, their pipes, the parsing."""
    world = World(NODES, JOBS)
    listings = scontrol_text.texts(world)
    text = {name: "\n".join(lines) + "\n" for name, lines in listings.items()}
    jobs_said = [scontrol_text.job_json(job) for job in world.slurm.jobs.values()]
    documents = {"node": scontrol_text.as_json(listings["node"]), "job": json.dumps(jobs_said)}
    printed = text["job"].encode()

    def ours() -> None:
        found, bad_nodes = parse.parse_scontrol_nodes(parse.split_scontrol_node_lines(text["node"]))
        jobs, bad_jobs = parse.parse_squeue_jobs(printed, b"", scontrol_text.MARK, HostlistCache())
        assert len(found) == NODES
        assert len(jobs) == JOBS
        assert not bad_nodes + bad_jobs

    def loads() -> None:
        for document in documents.values():
            json.loads(document)

    def split() -> None:
        for whole in text.values():
            for line in whole.split("\n"):
                dict(word.partition("=")[::2] for word in line.split(" "))

    taken: dict[str, list[float]] = {"ours": [], "loads": [], "split": [], "view": []}
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as directory:
        runner = SlurmCommandRunner(bin_dir=scontrol_text.install(world, Path(directory)))
        reader = SlurmCommandReader(runner, CLOCK.now)
        work = {"ours": ours, "loads": loads, "split": split, "view": reader.view}
        for _ in range(RUNS):
            for name, one in work.items():
                taken[name] += seconds_of(one, 1)
    ms = {name: 1e3 * median(values) for name, values in taken.items()}
    size = sum(map(len, text.values())) / 1e6
    what = f"{NODES:,} nodes, {JOBS:,} jobs"
    return Outcome(
        "reading",
        [
            Row(f"{what}: parse", ms["ours"], "ms", "json.loads", ms["loads"]),
            Row(f"{what}: parse", ms["ours"], "ms", "str.split into dicts", ms["split"]),
            Row(f"{what}: run and parse", ms["view"], "ms", "json.loads", ms["loads"]),
        ],
        [
            f"{size:.1f} MB of text, {sum(map(len, documents.values())) / 1e6:.1f} MB of JSON;"
            f" medians of {RUNS} in turn",
            "the commands are stand-ins that print the text at once: slurmctld's own time is not"
            " in it",
        ],
    )
