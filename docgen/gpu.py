"""docs/gpu/CARD.md: what hpctl did on a real GPU, from the recordings of that machine.

One folder of tests/gpu/recordings is one card and driver, and one page. Each section is a function
that takes the folder; it is left out where its files are missing.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

RECORDINGS = Path(__file__).parents[1] / "tests/gpu/recordings"
_XID = re.compile(r"Xid \(PCI:[^)]*\): (\d+)")
_AGREES = ("same", "same (moved)")
_UNITS = {
    "bf16_tflops": "bf16, TFLOP/s",
    "hbm_gbs": "HBM, GB/s",
    "h2d_gbs": "host to device, GB/s",
    "d2h_gbs": "device to host, GB/s",
    "fp64_gflops": "CPU fp64, GFLOP/s",
    "memory_gbs": "host memory, GB/s",
}
_RESTARTS = (
    ("exception", "in_process", "new_processes"),
    ("CUDA out of memory", "in_process_oom", ""),
    ("NCCL error", "in_process_nccl", "new_processes_nccl"),
    ("device-side assert", "in_process_assert", "new_processes_assert"),
)


def list_pages() -> dict[str, Callable[[], str]]:
    """Return the generated pages by their name in docs/."""
    folders = sorted(path for path in RECORDINGS.iterdir() if (path / "README.md").exists())
    return {f"gpu/{folder.name}.md": partial(page, folder) for folder in folders}


def page(folder: Path) -> str:
    """Return the page of one card and driver."""
    title, about = _read_description(folder)
    parts = [f"# {title}", "", about, ""]
    for section in SECTIONS:
        try:
            lines = list(section(folder))
        except FileNotFoundError:
            continue
        parts += [*lines, ""]
    return "\n".join(parts).rstrip() + "\n"


def _read_description(folder: Path) -> tuple[str, str]:
    """Return the title and the first paragraph of the folder's README."""
    head, _, rest = (folder / "README.md").read_text(encoding="utf-8").partition("\n")
    paragraph = rest.strip().partition("\n\n")[0]
    return head.removeprefix("# Recordings: "), paragraph


def _read_json(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def _make_table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> Iterator[str]:
    head = list(head)
    yield _make_line(head)
    yield "|" + "---|" * len(head)
    for row in rows:
        yield _make_line(row)


def _make_line(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _describe_nvml(folder: Path) -> Iterator[str]:
    """Yield the lines on how long the agent's sweeps of NVML take."""
    calls = _read_json(folder, "nvml-calls.json")
    sweeps = (("ordinary", calls["often"]), ("full", calls["full"]))
    yield "## Sweeps of NVML"
    yield ""
    yield from _make_table(
        ("sweep", "sweeps", "median ms", "95 % ms", "longest ms"),
        ((name, s["n"], s["p50_ms"], s["p95_ms"], s["max_ms"]) for name, s in sweeps),
    )
    slowest = max(calls["calls"], key=lambda name: calls["calls"][name]["max_ms"])
    yield ""
    yield (
        f"The first sweep takes {calls['first_full_ms']:.0f} ms after"
        f" {calls['init_ms']:.0f} ms of initialization; the slowest call is `{slowest}`"
        f" ({calls['calls'][slowest]['max_ms']:.0f} ms), which is made once."
        if calls["calls"][slowest]["n"] == 1
        else f"The first sweep takes {calls['first_full_ms']:.0f} ms."
    )


def _compare_with_nvidia_smi(folder: Path) -> Iterator[str]:
    """Yield the lines on the agent's fields beside nvidia-smi's."""
    rows: list[tuple[object, ...]] = []
    different: dict[tuple[str, str], dict[str, Any]] = {}
    for name, state in (("compared-idle.json", "idle"), ("compared-load.json", "under load")):
        fields = [f for f in _read_json(folder, name) if f["verdict"] in (*_AGREES, "DIFFERS")]
        same = sum(field["verdict"] in _AGREES for field in fields)
        rows.append((state, len(fields), same))
        different |= {
            (state, field["field"]): field for field in fields if field["verdict"] == "DIFFERS"
        }
    yield "## Fields compared with `nvidia-smi -q -x`"
    yield ""
    yield from _make_table(("GPU", "fields that both have", "same"), rows)
    yield ""
    yield from _make_table(
        ("GPU", "field that differs", "hpctl", "nvidia-smi"),
        ((state, f"`{n}`", f["hpctl"], f["smi"]) for (state, n), f in different.items()),
    )
    yield ""
    yield (
        "nvidia-smi shows temperature limits as margins, hpctl as degrees. Power changes between"
        " two readings."
    )


def _describe_agent(folder: Path) -> Iterator[str]:
    """Yield the lines on what the agent takes of its node."""
    text = (folder / "agent-metrics.txt").read_text(encoding="utf-8")
    values = dict(re.findall(r"^(\w+) ([\d.e+-]+)$", text, re.MULTILINE))
    cpu = 100 * float(values["hpctl_agent_cpu_ratio"])
    memory = float(values["hpctl_agent_resident_memory_bytes"]) / 1e6
    yield "## The agent"
    yield ""
    yield f"It takes {cpu:.1f} % of a core and {memory:.0f} MB of memory, without its NVML child."
    killed = _read_json(folder, "child-killed-and-stopped.json")
    yield (
        f"The child is killed within a sweep: the next one answers after"
        f" {killed['kill']['back_after_s']} s."
    )
    if "stop_inside" in killed:
        yield (
            f"The child is stopped with SIGSTOP: at the time of the recording hpctl said after"
            f" {killed['stop_inside']['said_after_s']:.0f} s that the driver hangs."
        )


def _describe_faults(folder: Path) -> Iterator[str]:
    """Yield the lines on what programs that fault leave in the kernel log."""
    yield "## Kernel lines of programs that fault"
    yield ""
    rows = []
    for crash in _read_json(folder, "crashes.json"):
        lines = [raw for _, raw in crash["kmsg"]]
        printed = sorted({found[1] for raw in lines if (found := _XID.search(raw))}, key=int)
        judged = {f["code"] for each in crash["judged"] for f in each["findings"]}
        events = sorted({e["event"]["data"] for e in crash["nvml_events"]})
        missed = sorted(set(printed) - judged, key=int)
        rows.append(
            (
                f"`{crash['program']}`",
                ", ".join(printed) or "none",
                ", ".join(map(str, events)) or "none",
                f"all but {', '.join(missed)}" if missed else "all" if printed else "-",
            )
        )
    yield from _make_table(
        ("program", "Xid in the log", "NVML's events", "recognized by hpctl"), rows
    )


def _describe_deaths(folder: Path) -> Iterator[str]:
    """Yield the lines on why a program ended, by its output."""
    verdicts = _read_json(folder, "deaths/verdicts.json")
    right = sum(each["right"] for each in verdicts.values())
    yield "## Verdicts on how programs end"
    yield ""
    yield f"At the time of the recording {right} of {len(verdicts)} verdicts were right."
    yield ""
    yield from _make_table(
        ("program", "hpctl said", "kind", "right"),
        (
            (f"`{name}`", v["said"]["why"], v["said"]["kind"], "yes" if v["right"] else "**no**")
            for name, v in verdicts.items()
        ),
    )


def _describe_acceptance(folder: Path) -> Iterator[str]:
    """Yield the lines on the acceptance test's figures, and how far two runs are apart."""
    found = _read_json(folder, "acceptance.json")
    yield "## The acceptance test's programs, run twice"
    yield ""
    rows = []
    for name, each in found["spread"].items():
        figures = (f"{value:,.1f}" for value in each["values"])
        rows.append((_UNITS[name.rpartition(" ")[2]], *figures, f"{each['spread_pct']} %"))
    yield from _make_table(("figure", "first run", "second run", "spread"), rows)


def _describe_nccl(folder: Path) -> Iterator[str]:
    """Yield the lines on what NCCL's RAS answers where a rank stays away."""
    texts = sorted((folder / "nccl").glob("*.ras.text"))
    if not texts:
        raise FileNotFoundError(folder / "nccl")
    yield "## NCCL ranks that stay away"
    yield ""
    yield "Several ranks ran on one GPU. NCCL's RAS said of each run:"
    yield ""
    rows = []
    for path in texts:
        text = path.read_text(encoding="utf-8")
        said = re.findall(r"^  ((?:Rank \d+|\d+ ranks?) .*?)(?: -- .*)?$", text, re.MULTILINE)
        rows.append((f"`{path.name.partition('.')[0]}`", "; ".join(said) or "no mismatch"))
    yield from _make_table(("run", "RAS"), rows)


def _describe_checkpoints(folder: Path) -> Iterator[str]:
    """Checkpoints of CUDA tensors, and the verdicts on them."""
    found = _read_json(folder, "checkpoints.json")
    whole = [row for row in found if row["whole"]]
    right = sum(row["step_right"] for row in whole)
    yield "## Checkpoints that frameworks saved"
    yield ""
    yield (
        f"Of {len(found)} that were saved, at the time of the recording hpctl called {len(whole)}"
        f" whole, {right} of them with the step that was expected. The others:"
    )
    yield ""
    yield from _make_table(
        ("checkpoint", "saved by", "hpctl said"),
        (
            (f"`{row['path']}`", row["note"] or "", row["why"] or _step_said(row))
            for row in found
            if not (row["whole"] and row["step_right"])
        ),
    )


def _step_said(row: dict[str, Any]) -> str:
    return "whole, of no step" if row["step"] is None else f"whole, step {row['step']}"


def _in_process(folder: Path) -> Iterator[str]:
    """Restarts in the same processes and in new ones."""
    found = _read_json(folder, "in-process/figures.json")
    if not found:
        return
    yield "## Restart in the same processes, and in new ones"
    yield ""
    yield "Seconds from the error to the next step, two ranks on the GPU:"
    yield ""

    def seconds(name: str) -> str:
        if name not in found:
            return "not run"
        each = found[name]
        ended = "" if each["same_process"] or name.startswith("new") else " (the process ended)"
        return f"{each['raised_to_next_step_s']:.1f}{ended}"

    yield from _make_table(
        ("error", "in process (NVRx)", "new processes"),
        ((error, seconds(same), seconds(new)) for error, same, new in _RESTARTS),
    )


def _fast_saves(folder: Path) -> Iterator[str]:
    """Yield the lines on what fast saves cost a step, and how soon they are safe."""
    disk = _read_json(folder, "fast-saves.json")["disk"]
    yield "## Fast saves"
    yield ""
    rows = []
    for name, key in (("DCP", "dcp_helped"), ("DCP, async", "async_helped")):
        each = disk[key]
        rows.append(
            (
                name,
                f"{each['bytes'] / 1e9:.1f}",
                f"{each['median_step_slowdown_pct']} %",
                each["safe_after_s"],
                each["copied_GBps"],
            )
        )
    yield from _make_table(
        ("save", "GB", "slowdown of a median step", "safe after s", "copied at GB/s"), rows
    )
    restore = disk["dcp_helped"]["restore"]
    same = "the same bytes" if restore["same_bytes"] else "**other bytes**"
    yield ""
    yield f"A restore from the other node's copy took {restore['s']} s and gave {same}."
    yield "Both nodes' helpers and disks were on this one machine."


def _node_loss(folder: Path) -> Iterator[str]:
    """Yield the lines on a node lost under a spare, and by requeue."""
    found = _read_json(folder, "sandbox-on-gpu.json")
    if "same_bits" not in found:
        yield from _node_loss_to_its_end(found)
        return
    spare, requeue = found["spare"], found["requeue"]
    total, start = spare["fault_to_first_step_s"], spare["resumed"]["since_born"]
    weights = "bit-identical to" if found["same_bits"]["spare"] else "**different from**"
    yield "## A node that is lost"
    yield ""
    yield (
        "A real Slurm ran four nodes on this machine, which shared the GPU. The loss was simulated:"
        f" the kernel line `{_describe_injection(spare)}` was given to the agent. The GPU itself"
        " did not fail."
    )
    yield ""
    yield (
        f"- With a spare (`hpctl run --spares 1`): the job was at step {spare['step_at_fault']} and"
        f" resumed from step {spare['resumed']['n']}. The first new step came {total:.1f} s after"
        f" the line; {start:.1f} s of them ({100 * start / total:.0f} %) are the program's own"
        f" start: imports, CUDA, loading. Its final weights were {weights} those of an undisturbed"
        " run."
    )
    yield (
        f"- By requeue: the job was at step {requeue['step_at_fault']}; slurmctld shows its next"
        f" start {_requeue_seconds(requeue):.0f} s after it was requeued (its times are whole"
        f" seconds). It resumed from `{_resumed_from(requeue)}`. It was not run to its end, so"
        " nothing is known of its weights."
    )


def _node_loss_to_its_end(found: dict[str, Any]) -> Iterator[str]:
    """Yield the lines on a node lost, as `tests/gpu/parts/node_lost.py` records
    it, under a spare and by requeue."""
    yield "## A node that is lost"
    yield ""
    yield (
        "A real Slurm ran its nodes on this machine, which shared the GPU. The loss was simulated"
        " by a kernel line. Seconds from that line, and whether the final weights are those of an"
        " undisturbed run:"
    )
    yield ""
    names = {"requeue": "requeue", "spare": "`hpctl run --spares 1`"}
    rows = [
        (
            text,
            *(found[name].get(key, "-") for key in _NODE_LOSS_TIMES),
            "identical" if found[name].get("identical") else "**different**",
        )
        for name, text in names.items()
        if name in found
    ]
    yield from _make_table(
        ("job", "drained", "started", "first new step", "completed", "weights"), rows
    )


_NODE_LOSS_TIMES = (
    "fault_to_drained_s",
    "fault_to_start_s",
    "fault_to_first_step_s",
    "fault_to_completed_s",
)


def _describe_injection(run: dict[str, Any]) -> str:
    return str(run["inject"].partition(": ")[2])


def _requeue_seconds(run: dict[str, Any]) -> float:
    times = dict(re.findall(r"(SubmitTime|StartTime)=(\S+)", run["not_back"]["job"]))
    start, submit = (datetime.fromisoformat(times[key]) for key in ("StartTime", "SubmitTime"))
    return (start - submit).total_seconds()


def _resumed_from(run: dict[str, Any]) -> str:
    said = next(line for line in run["hpctl_said"] if "resuming from" in line)
    return Path(said.rpartition(" ")[2]).name


def _read_notes(folder: Path) -> Iterator[str]:
    """Yield the lines on what a person noted of these recordings."""
    yield (folder / "notes.txt").read_text(encoding="utf-8").strip()


SECTIONS: tuple[Callable[[Path], Iterator[str]], ...] = (
    _read_notes,
    _describe_nvml,
    _compare_with_nvidia_smi,
    _describe_agent,
    _describe_faults,
    _describe_deaths,
    _describe_acceptance,
    _describe_nccl,
    _describe_checkpoints,
    _in_process,
    _fast_saves,
    _node_loss,
)
