"""Each file of a checkpoint of each format, replaced by a hostile one and read by root and user."""

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec import Struct

from hpctl.checkpoints.patterns import FilePattern, parse_checkpoint_file_patterns
from hpctl.checkpoints.search import (
    DECLARED,
    FORMATS,
    CompleteCheckpoint,
    find_newest_complete_checkpoint_in_tiers,
    list_checkpoints,
    verify_checkpoint,
)
from tests.adversary.bed import STRANGER
from tests.adversary.hostile_files import FOR_JSON, HOSTILE, MARK, ONCE, remove
from tests.checkpoints.checkpoint_files import (
    BESIDE,
    WHOLE,
    accelerate_files,
    flax_map,
    generic,
    legacy_stream,
    torch_save,
    write,
)
from tests.checkpoints.test_checkpoint_nvrx import share
from tests.process import room

pytestmark = [
    pytest.mark.integration,
    pytest.mark.adversary,
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="reads as root and as another user"),
]

MEMORY_BYTES = 900 << 20
"""Address space that a search may take beyond what the process has: a whole state of 64 MiB of JSON
takes most of it."""
SECONDS = 60
"""Processor time for all hostile files in all places of one checkpoint."""
LONGEST = 1000
"""Characters of a reason, which is for a person."""


class Sample(Struct, frozen=True):
    """A whole checkpoint. `place` is "" where its files lie in the directory that is searched."""

    format: str
    place: str
    files: Callable[[], dict[str, bytes]]
    beside: dict[str, bytes] = {}
    declared: tuple[str, ...] = ()


def lightning() -> dict[str, bytes]:
    return {
        "epoch=1-step=40.ckpt": torch_save({"pytorch-lightning_version": "2", "global_step": 40})
    }


SAMPLES = {
    **{
        name: Sample(form, place, made, BESIDE.get(name, {}))
        for name, (form, place, made) in WHOLE.items()
    },
    "megatron-legacy": Sample(
        *WHOLE["megatron-legacy"], {"latest_checkpointed_iteration.txt": b"40"}
    ),
    "accelerate": Sample("accelerate", "checkpoint_3", accelerate_files),
    "generic": Sample("generic", "step-40", dict),
    "torch-save": Sample("torch-save", "", lambda: {"step-40.pt": torch_save({"step": 40})}),
    "torch-save, old": Sample("torch-save", "", lambda: {"step-40.pt": legacy_stream(40)}),
    "lightning": Sample("lightning", "", lightning),
    "flax": Sample("flax", "", lambda: {"checkpoint_40": flax_map(40)}),
    "nvrx": Sample(
        "nvrx-local", "0", lambda: {f"iter_0000040_{rank}_local.pt": share(2) for rank in (0, 1)}
    ),
    "declared": Sample(
        DECLARED,
        "",
        lambda: {f"save_{step}.bin": torch_save({"step": step}) for step in (30, 40)},
        declared=("save_{step}.bin",),
    ),
}
"""What each format's checkpoint consists of."""


@pytest.fixture
def place() -> Iterator[Path]:
    with room() as path:
        yield path
        MARK.unlink(missing_ok=True)


def lay_out(root: Path, sample: Sample) -> tuple[Path, list[str]]:
    """Write a whole checkpoint and an older one of hpctl's own; return its directory and the names
    of its files."""
    generic(root, "step-1", 1)
    if sample.format == "generic":
        generic(root, sample.place, 40)
        return root / sample.place, ["manifest.json", "data"]
    path = write(root / sample.place, sample.files())
    write(root, sample.beside)
    return path, sorted(sample.files())


def read_hostile(root: Path, sample: Sample, uid: int) -> str:
    """Put each hostile file in the place of each file of a checkpoint and read that; return what
    went wrong, one line each."""
    path, names = lay_out(root, sample)
    declared = parse_checkpoint_file_patterns(sample.declared)
    wrong = []
    for hostile in HOSTILE:
        for number, name in enumerate(names):
            if hostile in FOR_JSON and not name.endswith((".json", "_METADATA", "safetensors")):
                continue
            if hostile in ONCE and number:
                continue
            try:
                saved = replace_by(hostile, path / name)
            except PermissionError:
                continue  # a device is root's to make
            try:
                check_judgment(path if sample.place else path / name)
                if number == 0:
                    check_search(root, declared)
            except Exception as error:  # noqa: BLE001 -- all that goes wrong is told at once
                wrong.append(f"{hostile.__name__} {name}: {type(error).__name__}: {error!s:.150}")
            remove(path / name)
            (path / name).write_bytes(saved)
    return "\n".join(wrong)


def check_judgment(path: Path) -> None:
    """Judge by sizes and by contents: one short answer each."""
    for deep in (False, True):
        row = verify_checkpoint(path, deep=deep)
        assert isinstance(row, CompleteCheckpoint) or len(row.why) < LONGEST, len(row.why)


def check_search(root: Path, declared: Sequence[FilePattern]) -> None:
    """An older checkpoint is found whatever lies beside it."""
    assert find_newest_complete_checkpoint_in_tiers(root, declared=declared).found is not None
    list_checkpoints(root, declared=declared)


def in_child(uid: int, work: Callable[[], str]) -> str:
    """Run something in a child as a user, with bounded memory and processor time."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        answer = {"error": "it did not come to its end"}
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            bound(uid)
            answer = {"said": work()}
        except BaseException as error:  # noqa: BLE001 -- the parent tells what it was
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        finally:
            with os.fdopen(writing, "w") as out:
                json.dump(answer, out)
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as source:
        text = source.read()
    _, status = os.waitpid(child, 0)
    assert text, f"the child was ended by signal {os.WTERMSIG(status)}"
    answer = json.loads(text)
    assert "error" not in answer, answer["error"]
    return str(answer["said"])


def bound(uid: int) -> None:
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + MEMORY_BYTES, has + MEMORY_BYTES))
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + SECONDS, used + SECONDS + 1))
    signal.alarm(2 * SECONDS)
    if uid:
        os.setgroups([])
        os.setresgid(STRANGER.pw_gid, STRANGER.pw_gid, STRANGER.pw_gid)
        os.setresuid(uid, uid, uid)


def replace_by(hostile: Callable[[Path], None], target: Path) -> bytes:
    """Put a hostile file in the place of a whole one, whose bytes are returned. Raises
    PermissionError with the whole one in its place."""
    head = target.with_name(f"{target.name}.head")
    saved = target.read_bytes()
    target.rename(head)
    try:
        hostile(target)
    except PermissionError:
        head.rename(target)
        raise
    head.unlink()
    return saved


QUICK = ("torch-dcp", "declared")
"""Samples of every run: a table of 26 files takes some seconds for each sample and user."""


def test_every_format_has_a_sample() -> None:
    known = {each.name for each in FORMATS} | {DECLARED}
    assert {sample.format for sample in SAMPLES.values()} == known


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_whole(place: Path, name: str) -> None:
    sample = SAMPLES[name]
    lay_out(place, sample)
    found = find_newest_complete_checkpoint_in_tiers(
        place, declared=parse_checkpoint_file_patterns(sample.declared)
    ).found
    if name in ("accelerate", "nvrx", "declared", "lightning"):
        return  # what these need besides is shown in the tests of the format
    assert found is not None
    assert (found.format, found.step) == (sample.format, 40)


@pytest.mark.parametrize("uid", [0, STRANGER.pw_uid], ids=["root", "user"])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.nightly) for name in SAMPLES],
)
def test_a_hostile_file_costs_one_checkpoint_and_nothing_else(
    place: Path, name: str, uid: int
) -> None:
    os.chown(place, uid, -1)
    assert in_child(uid, lambda: read_hostile(place, SAMPLES[name], uid)) == ""
    assert not MARK.exists(), "a pickle was executed"
