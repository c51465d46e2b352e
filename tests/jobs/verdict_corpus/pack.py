"""The evidence of runs, without what identifies the machine, in one archive for each part.

A run is a folder: `run.json` (ends in their order, whether it hung, steps, the kernel's lines),
`job.log`, `task-N.log`, `stacks.txt` where stacks were read, `flight/nccl_trace_rank_N`, and
`truth.json`.
"""

import io
import json
import pickle
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from hpctl.jobs.hangs.stack_groups import NodeStacks, format_node_stacks, parse_node_stacks
from hpctl.jobs.log_end import LogTailBuffer
from hpctl.jobs.run.output import LONGEST
from tests.gpu.redact import Redactor

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
RECORDED = HERE / "recorded"
LARGEST_LOG = 24 << 10
"""Bytes of a rank's log that are kept: its end."""


def make_redactor(folder: Path) -> Redactor:
    """Return what replaces the machine's paths: those of a run in `folder`."""
    return Redactor(
        {
            str(HERE / "programs"): "/home/user/project",
            str(folder): "/fsx/job",
            sys.prefix: "/opt/venv",
            str(Path(sys.prefix).resolve()): "/opt/venv",
            str(ROOT): "/home/user/hpctl",
            "/tmp/tmp": "/scratch/tmp",
        }
    )


def read_run(folder: Path) -> dict[str, bytes]:
    """Return the evidence of a run by the names of its files, redacted."""
    redactor = make_redactor(folder)
    found = {name: (folder / name).read_bytes() for name in ("run.json", "truth.json", "case.json")}
    found["run.json"] = redactor.text(found["run.json"].decode()).encode()
    found["job.log"] = redactor.text(read_log_end(folder / "job.log")).encode()
    for path in sorted(folder.glob("task-*.log")):
        text = redactor.text(path.read_text(errors="replace"))
        found[path.name] = text.encode()[-LARGEST_LOG:]
    if (folder / "stacks.txt").exists():
        nodes = parse_node_stacks((folder / "stacks.txt").read_text().splitlines())
        found["stacks.txt"] = "\n".join(redact_stacks(nodes, redactor)).encode()
    for path in sorted((folder / "flight").glob("nccl_trace_rank_?")):
        # Written by this very run.
        dump = redactor.value(pickle.loads(path.read_bytes()))
        found[f"flight/{path.name}"] = pickle.dumps(dump)
    return found


def read_log_end(path: Path) -> str:
    """Return the lines of a job's log that `hpctl` keeps of it."""
    end = LogTailBuffer()
    end.add_log_block(path.read_bytes() + b"\n", LONGEST)
    return "\n".join(end.list_lines())


def redact_stacks(nodes: Iterable[NodeStacks], redactor: Redactor) -> Iterator[str]:
    """Yield the lines of what nodes reported, with every text in it redacted."""
    for node in nodes:
        plain = redactor.value(msgspec.to_builtins(node))
        yield from format_node_stacks(msgspec.convert(plain, type=NodeStacks))


def write_archive(path: Path, runs: dict[str, dict[str, bytes]]) -> None:
    """Write runs into an archive, the same bytes for the same runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:xz", preset=9) as archive:
        for name, files in sorted(runs.items()):
            for file, raw in sorted(files.items()):
                member = tarfile.TarInfo(f"{name}/{file}")
                member.size = len(raw)
                archive.addfile(member, io.BytesIO(raw))


def read_archive(path: Path) -> dict[str, dict[str, bytes]]:
    """Return the runs of an archive: each one's files by their names."""
    runs: dict[str, dict[str, bytes]] = {}
    with tarfile.open(path, "r:xz") as archive:
        for member in archive:
            name, _, file = member.name.partition("/")
            opened = archive.extractfile(member)
            assert opened is not None
            runs.setdefault(name, {})[file] = opened.read()
    return runs


def archive_of(part: str) -> Path:
    """Return the committed archive of a part of the corpus."""
    return RECORDED / part / "runs.tar.xz"


def load_truth(files: Mapping[str, bytes]) -> dict[str, object]:
    """Return what a run is known to be."""
    truth = json.loads(files["truth.json"])
    assert isinstance(truth, dict)
    return truth
