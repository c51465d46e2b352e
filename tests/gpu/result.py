"""The results of a run: one JSON, one page, and the folder of raw recordings.

result.json and result.md are under LARGEST_BYTES together, and so are the recordings: what comes
back from a GPU machine is limited, and what is large is rarely what matters.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.gpu.context import KEPT
from tests.gpu.redact import Redactor

if TYPE_CHECKING:
    from tests.gpu.runner import PartResult

LARGEST_BYTES = 1_900_000
LONGEST_LINE = 2000
"""Characters of one line of the page."""
MOST_LINES = 100
"""Lines of one part on the page."""
ROOT = Path(__file__).resolve().parents[2]
README = "README.md"
CONTENTS = {
    "acceptance.json": "the GPU programs of the acceptance test, run twice",
    "agent-check-*.json": "the agent's findings, idle and under load",
    "agent-metrics.txt": "the agent's metrics after both",
    "checkpoints-killed.json": "runs killed in a save and in a step: verdicts on their saves",
    "child-killed-and-stopped.json": "the NVML child killed and stopped",
    "compared-*.json": "NVML's fields and nvidia-smi's, idle and under load",
    "crashes.json": "faulting CUDA programs: kernel records, NVML events, output, findings",
    "deaths/*": "standard error of programs that fail, and hpctl's verdicts",
    "in-process/*": "restarts in the same processes (NVRx) and in new ones",
    "kmsg-boot-driver.txt": "records of /dev/kmsg that the driver prints at boot",
    "kmsg-crashes.txt": "records that the faulting programs cause",
    "nccl/*": "NCCL ranks, one of which stays away or dies: RAS, flight recorder, standard error",
    "nvml-calls.json": "every NVML call of the agent's child: duration, return code, the snapshot",
    "sandbox-on-gpu.json": "nodes lost under a real Slurm with CUDA training",
    "slurm/*": "logs of training jobs under a real Slurm",
    "smi-*.xml": "`nvidia-smi -q -x`, idle and under load",
    "smi-plain-load.txt": "the table of nvidia-smi under load",
}
"""What the recordings of the parts are, by the pattern of their names."""


def write_result(out: Path, results: Sequence[PartResult], scratch: Path, *, dry: bool) -> None:
    """Write result.json, result.md and recordings/ below `out`, redacted and within their size."""
    out.mkdir(parents=True, exist_ok=True)
    kept = dict(_read_kept(results, scratch))
    parts = [asdict(result) for result in results]
    redactor = Redactor(
        {socket.gethostname(): "vm", str(scratch): "/tmp/proof", str(ROOT): "/opt/hpctl-tree"}
    )
    redactor.learn([json.dumps(parts)])
    redactor.learn(raw.decode(errors="replace") for raw in kept.values())
    parts = redactor.value(parts)
    recordings, dropped = fit_files({name: redactor.file(name, raw) for name, raw in kept.items()})
    recordings[README] = describe(parts, recordings, dry=dry).encode()
    page = draw_page(parts, dropped, dry=dry)
    document = {"schema": "hpctl.gpu-proof/1", "dry": dry, "parts": parts, "dropped": dropped}
    _write(out / "result.json", fit_document(document, LARGEST_BYTES - len(page.encode())))
    _write(out / "result.md", page)
    folder = out / "recordings"
    shutil.rmtree(folder, ignore_errors=True)
    for name, raw in recordings.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(raw)


def _write(place: Path, text: str) -> None:
    part = place.with_name(place.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, place)


def _read_kept(results: Sequence[PartResult], scratch: Path) -> Iterator[tuple[str, bytes]]:
    for result in results:
        folder = scratch / "parts" / result.name / KEPT
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                yield str(path.relative_to(folder)), path.read_bytes()


def fit_files(
    files: dict[str, bytes], largest: int = LARGEST_BYTES
) -> tuple[dict[str, bytes], list[str]]:
    """Return the files that fit, and the names of those that were dropped, the largest first."""
    fitting = dict(files)
    dropped = []
    while sum(map(len, fitting.values())) > largest:
        name = max(fitting, key=lambda name: len(fitting[name]))
        dropped.append(f"{name} ({len(fitting.pop(name))} bytes)")
    return fitting, dropped


def fit_document(document: dict[str, Any], largest: int) -> str:
    """Return a document as JSON of at most `largest` bytes: long texts and lists are cut first."""
    longest = largest // 2
    text = json.dumps(document, indent=1) + "\n"
    while len(text) > largest:
        if longest < 64:
            raise ValueError(f"{len(text)} bytes of short texts do not fit into {largest}")
        parts = [_shorten_part(part, longest) for part in document["parts"]]
        text = json.dumps({**document, "parts": parts}, indent=1) + "\n"
        longest //= 2
    return text


def _shorten_part(part: dict[str, Any], longest: int) -> dict[str, Any]:
    cut = {key: shorten(part[key], longest) for key in ("facts", "lines", "output", "why")}
    return {**part, **cut}


def shorten(value: Any, longest: int) -> Any:
    """Return a value whose texts and lists are at most so many characters long, as JSON.

    A dict that is longer keeps its first keys, too, but its values are cut before.
    """
    if isinstance(value, str):
        return value if len(value) <= longest else f"{value[:longest]}... ({len(value)} characters)"
    if isinstance(value, list):
        kept, length = [], 0
        for item in value:
            short = shorten(item, longest)
            length += len(json.dumps(short))
            if length > longest:
                kept.append(f"... ({len(value)} items)")
                break
            kept.append(short)
        return kept
    if isinstance(value, dict):
        short_dict = {key: shorten(item, longest) for key, item in value.items()}
        if len(short_dict) > longest // 8:
            keys = list(short_dict)[: longest // 8]
            return {**{key: short_dict[key] for key in keys}, "...": f"{len(short_dict)} keys"}
        return short_dict
    return value


def describe(parts: Sequence[dict[str, Any]], files: Iterable[str], *, dry: bool) -> str:
    """Return the README.md of the recordings: the card, the machine, and what each file is."""
    machine = _find_machine(parts)
    names = [word.strip() for word in str(machine.get("nvidia_smi", "")).split(",")]
    card, driver = names[:2] if len(names) > 1 else ("unknown GPU", "unknown")
    made = "Made with stand-ins by a dry run" if dry else "Recorded"
    system = (
        f"kernel {machine.get('kernel')}, {machine.get('distribution')}, cgroup"
        f" {machine.get('cgroup')}, {machine.get('cores')} cores, {machine.get('memory_gib')} GiB"
    )
    programs = (
        f"Python {machine.get('python')}; {machine.get('slurm')};"
        f" {_draw_value(machine.get('versions', {}))}"
    )
    about = (
        f"{made} on {time.strftime('%Y-%m-%d', time.gmtime())} on one machine: {', '.join(names)};"
        f" {system}; {programs}. Serial numbers, UUIDs, the host name and paths are replaced by"
        " others of the same form; nothing else is edited."
    )
    lines = [f"# Recordings: {card}, driver {driver}", "", about, "", "| file | content |"]
    lines.append("|---|---|")
    present = list(files)
    for pattern, content in CONTENTS.items():
        if any(fnmatch(name, pattern) for name in present):
            lines.append(f"| `{pattern}` | {content} |")
    return "\n".join(lines) + "\n"


def _draw_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return str(value)


def _find_machine(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return next((part["facts"] for part in parts if part["name"] == "machine"), {})


def draw_page(parts: Sequence[dict[str, Any]], dropped: Sequence[str], *, dry: bool) -> str:
    """Return the page: the machine, how each part ended, and what each said."""
    machine = _find_machine(parts)
    lines = [f"# hpctl on {'stand-ins (a dry run)' if dry else 'a GPU'}", ""]
    lines += [f"- {key.replace('_', ' ')}: {_draw_value(value)}" for key, value in machine.items()]
    lines += [
        "",
        "| part | state | seconds | CPU seconds | left running |",
        "|---|---|---|---|---|",
    ]
    for part in parts:
        left = ", ".join(part["left_running"])
        times = f"{part['took_s']:.1f} | {part['cpu_s']:.1f}"
        lines.append(f"| {part['name']} | {part['state']} | {times} | {left} |")
    if dropped:
        lines += ["", f"Recordings dropped for their size: {', '.join(dropped)}."]
    for part in parts:
        lines += ["", f"## {part['title']}", ""]
        if part["state"] == "not run":
            lines += [f"Not run: {part['why']}."]
        lines += [f"- {line[:LONGEST_LINE]}" for line in part["lines"][:MOST_LINES]]
        if part["why"] and part["state"] != "not run":
            why = part["why"].strip().splitlines()
            lines += ["", f"{part['state']}:", "", "```", *why[-20:], "```"]
        if part["not_killed"]:
            lines += ["", f"Could not be killed: {', '.join(part['not_killed'])}."]
    return "\n".join(lines) + "\n"
