"""The whole proof with stand-ins: every part runs here as it will on a machine with a GPU.

NVML is the scripted library, nvidia-smi and the kernel's log print recordings, torch trains on the
CPU; Slurm is real.
"""

import json
import os
import subprocess
import sys
import tarfile
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

import pytest

from tests.gpu.carry import LIBRARIES, pack_slurm
from tests.gpu.plan import PARTS
from tests.gpu.recordings import read_json
from tests.gpu.result import CONTENTS
from tests.process import run_text

pytestmark = [pytest.mark.slurm, pytest.mark.integration]

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
"""Generous: what the run needs is processor time, which other programs take, too."""
MOST_CPU_IN_IMPORTS = 80
"""Measured: 45 to 55 times the processor time of `import torch`, which most parts do, on hosts
where the whole run takes 73 to 120 s of it. More makes `make test` noticeably slower."""
MAY_LACK = {"no JAX", "no nvidia-resiliency-ext", "no transformers", "no nvcc"}
"""What this machine need not have; the GPU machine has it, or the page says that it has not."""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("proof")
    command = [sys.executable, "-m", "tests.gpu", "--dry", "--out", str(out)]
    done = run_text([*command, "--budget", str(LIMIT_S)], timeout=LIMIT_S + 60, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return out


@pytest.fixture(scope="module")
def parts(out: Path) -> dict[str, dict]:
    return {part["name"]: part for part in json.loads((out / "result.json").read_text())["parts"]}


@pytest.mark.timeout(LIMIT_S + 90)
def test_every_part_runs_or_says_what_this_machine_lacks(parts: dict[str, dict]) -> None:
    assert list(parts) == list(PARTS)
    for name, part in parts.items():
        lacks = set(part["why"].split(", "))
        assert part["state"] == "ran" or (part["state"] == "not run" and lacks <= MAY_LACK), name


def test_the_run_needs_little_processor_time(parts: dict[str, dict]) -> None:
    used = {name: part["cpu_s"] for name, part in parts.items()}
    unit = median(_measure_torch_import() for _ in range(3))
    assert sum(used.values()) < MOST_CPU_IN_IMPORTS * unit, (unit, used)


def _measure_torch_import() -> float:
    """Return the seconds of processor time of a process that imports torch, here and now."""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "import torch"], os.environ)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime


def test_nvml_s_contract_holds_for_the_stand_in(parts: dict[str, dict]) -> None:
    assert parts["nvml_contract"]["facts"]["exit_code"] == 0


def test_every_part_that_ran_recorded_something(parts: dict[str, dict]) -> None:
    for name, part in parts.items():
        assert part["state"] == "not run" or (part["facts"] and part["lines"]), name


def test_no_part_leaves_anything_running(parts: dict[str, dict]) -> None:
    left = {name: part["left_running"] for name, part in parts.items() if part["left_running"]}
    assert left == {}
    assert not any(part["not_killed"] for part in parts.values())


def test_the_page_has_every_part_and_all_fits(out: Path, parts: dict[str, dict]) -> None:
    page = (out / "result.md").read_text()
    assert all(part["title"] in page for part in parts.values())
    assert len(page) + (out / "result.json").stat().st_size < 2_000_000
    recordings = [path for path in (out / "recordings").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in recordings) < 2_000_000


def test_recordings_have_the_names_of_those_that_are_committed(out: Path) -> None:
    card = ROOT / "tests/gpu/recordings/h200-580.159"
    mine = {
        "acceptance.json", "agent-check-idle.json", "agent-check-load.json", "agent-metrics.txt",
        "child-killed-and-stopped.json", "compared-idle.json", "compared-load.json", "crashes.json",
        "kmsg-boot-driver.txt", "kmsg-crashes.txt", "nvml-calls.json", "sandbox-on-gpu.json",
        "smi-idle.xml", "smi-load.xml", "smi-plain-load.txt",
    }  # fmt: skip
    assert mine <= {path.name for path in card.iterdir()}
    assert mine <= {path.name for path in (out / "recordings").iterdir()}


def test_every_recording_is_described(out: Path) -> None:
    folder = out / "recordings"
    readme = (folder / "README.md").read_text()
    assert readme.startswith("# Recordings: NVIDIA H200, driver 580.159.04\n")
    patterns = [pattern for pattern in CONTENTS if f"| `{pattern}` |" in readme]
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
    assert {name for name in names if not any(fnmatch(name, pattern) for pattern in patterns)} == {
        "README.md"
    }


def test_a_lost_node_costs_no_weight(parts: dict[str, dict]) -> None:
    facts = parts["node_lost"]["facts"]
    assert facts["requeue"]["identical"]
    assert facts["requeue"]["fault_to_completed_s"] > 0
    (resumed,) = facts["requeue"]["final"]["resumed_from"]
    # A checkpoint each 10 steps; on a busy machine the fault comes some steps after the first.
    assert resumed >= 10
    assert resumed % 10 == 0


def test_every_story_that_was_tried_held(parts: dict[str, dict]) -> None:
    stories = {
        key: value
        for part in parts.values()
        for key, value in part["facts"].items()
        if key.startswith("story/")
    }
    assert {
        key: story["observed"] for key, story in stories.items() if story["held"] is False
    } == {}
    tried = {key for key, story in stories.items() if story["held"]}
    assert tried >= {
        "story/restart/raise", "story/run/hang", "story/recorder/nccl_skip", "story/death/segv",
        "story/hang/gloo-skip", "story/checkpoint/inplace", "story/checkpoint/dcp",
    }  # fmt: skip


def test_every_recorded_xid_line_is_recognized(parts: dict[str, dict]) -> None:
    facts = parts["crashes"]["facts"]
    lines = [
        judged for mode in ("illegal", "misaligned", "trap") for judged in facts[mode]["judged"]
    ]
    xids = [judged for judged in lines if "Xid" in judged["raw"]]
    assert len(xids) == 5
    assert all(judged["findings"] for judged in xids)
    assert {view["condition"] for view in facts["triage"]} == {"healthy"}


def test_the_agent_hears_every_recorded_event(parts: dict[str, dict]) -> None:
    """Recording: crashes.json."""
    facts = parts["crashes"]["facts"]
    recorded = read_json("crashes.json")
    for row in recorded:
        heard = [each["event"]["data"] for each in facts[row["program"]]["nvml_events"]]
        assert heard == [each["event"]["data"] for each in row["nvml_events"]], row["program"]
    assert any(row["nvml_events"] for row in recorded)


def test_a_machine_without_a_gpu_is_reported() -> None:
    done = subprocess.run(
        [ROOT / "tests/gpu/run.sh"], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "no NVIDIA GPU here" in done.stderr


def test_the_packed_slurm_has_its_programs_plugins_and_libraries(tmp_path: Path) -> None:
    pack_slurm(tmp_path / "slurm.tar.gz")
    with tarfile.open(tmp_path / "slurm.tar.gz") as archive:
        names = set(archive.getnames())
    programs = {f"usr/sbin/{name}" for name in ("slurmctld", "slurmd", "slurmstepd", "munged")}
    programs |= {f"usr/bin/{name}" for name in ("srun", "sbatch", "scontrol", "sinfo", "munge")}
    assert programs <= names
    assert any(name.endswith(("/cgroup_v1.so", "/cgroup_v2.so")) for name in names)
    libraries = {name.rpartition("/")[2] for name in names if name.startswith(LIBRARIES)}
    assert any(name.startswith("libhwloc.so") for name in libraries)
    assert not any(name.startswith("libc.so") for name in libraries)
    assert not any(name.startswith("usr/share/doc") for name in names)
