"""The frameworks' checkpoints: whole only when every byte that can be missed is there."""

from __future__ import annotations

import base64
import errno
import json
import os
import random
import time
import zlib
from pathlib import Path

import pytest

from hpctl.jobs.checkpoints import search as last
from hpctl.jobs.checkpoints.search import Checkpoint, PassedOver, last_complete
from tests.unit.checkpoint_files import (
    WHOLE,
    dcp_files,
    dcp_metadata,
    deepspeed_files,
    hf_files,
    instance,
    make,
    pickle_of,
    text,
    torch_dist_files,
    torch_save,
    write,
)

# What torch 2.13's torch.save({"global_step": 7}) writes, deflated: 64-bit end records included.
REAL = (
    "c-jl_W@cev;NW1u06Yw03^|!4`YDMeiFyUuIc`ou3{e=MfvL8TA%YvIK0PNtDKRI$xFofpkkOmHSTDevokKF<s"
    "H8Md5`+VAS|!Y&0=7yoEx#x?u_V4MwWv5VKhMoc0gH{Ozz}51_V;(18G+_7;<ZJL!5U&qaY=qrVtQ(PVoqjy"
    "UT$h$iJOx-L5pwzGZT;l?8^&ZG6Ah%!s`HD24}DXk}6A5^NUhai`<;-$+Z^-"
    "faaCtq=MYgYWrA{4QLA+UN>+vID*{(4`N%&Twu%vvist^^iab7mtru3L;xsB=@+LKWddWMDzOCUj`++JHzy-"
    "9oMK>PX<%VuW?^P-"
    "Zf<5|X=H3@U}9ikU}|b;Xkut?Vqj@xU}9ouU=DJnP4DFM8bEhwfL+N5axC1P$O)AP!{x~N09_|?;uA*El?~O"
    "2maNeYKu$bjC<a`F8Gw;u(ak`Pd|nhYf*2W46CJu%<hbKT(RvN46^FZ#gHsCCP9_FC5gp*o#-"
    ";;RDaWh}*TsfLS2IHBA50J$sE-{)7qdY4klfD72GPR?Ru54N0CDvD_5"
)
OPTIONAL = {"rng_state_0.pth"}  # the Trainer goes on without; no file says how many there were


def judge(path: Path, *, deep: bool = False) -> Checkpoint | PassedOver:
    return last.judge(path, deep=deep)


def reason(path: Path, *, deep: bool = False) -> str:
    row = judge(path, deep=deep)
    assert isinstance(row, PassedOver), row
    assert not row.unreadable, row
    return row.why


@pytest.mark.parametrize("name", WHOLE)
def test_whole(tmp_path: Path, name: str) -> None:
    path = make(tmp_path, name)
    search = last_complete(tmp_path)
    assert search.found is not None, search.passed_over
    assert (search.found.path, search.found.step) == (path, 40)
    assert search.found.format == WHOLE[name][0]
    assert isinstance(judge(path, deep=True), Checkpoint)


@pytest.mark.parametrize("name", WHOLE)
def test_without_any_one_of_its_files_it_is_not_whole(tmp_path: Path, name: str) -> None:
    files = WHOLE[name][2]()
    for number, gone in enumerate(sorted(files.keys() - OPTIONAL)):
        kept = {file: raw for file, raw in files.items() if file != gone}
        path = write(tmp_path / str(number) / WHOLE[name][1], kept)
        why = reason(path)
        assert "\n" not in why
        if Path(gone).name.startswith("__"):
            assert Path(gone).name in why, "the reason names the file"


@pytest.mark.parametrize("name", WHOLE)
def test_with_any_one_of_its_files_cut_it_is_not_whole(tmp_path: Path, name: str) -> None:
    path = make(tmp_path, name)
    for cut, raw in WHOLE[name][2]().items():
        file = path / cut
        times = file.stat()
        sizes = {0, 1, 21, len(raw) // 2, len(raw) - 22, len(raw) - 1}
        for size in sizes & set(range(len(raw))):
            file.write_bytes(raw[:size])
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            assert Path(cut).name in (why := reason(path)) or "weights" in cut, (cut, size, why)
        file.write_bytes(raw)
        os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert isinstance(judge(path), Checkpoint)


def test_the_newest_whole_one_of_several_frameworks_wins(tmp_path: Path) -> None:
    write(tmp_path / "step-10", dcp_files())
    good = write(tmp_path / "global_step20", deepspeed_files(20))
    write(tmp_path / "iter_0000030", torch_dist_files())
    (tmp_path / "iter_0000030/__2_0.distcp").unlink()
    (tmp_path / "epoch=0-step=50.ckpt").write_bytes(torch_save({"global_step": 50})[:-5])
    (tmp_path / "latest").write_text("iter_0000030")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("30")
    search = last_complete(tmp_path)
    assert search.found.path == good
    assert {each.path.name: each.why for each in search.passed_over} == {
        "iter_0000030": "__2_0.distcp is missing",
        "epoch=0-step=50.ckpt": "epoch=0-step=50.ckpt has no zip end record: still being "
        "written, or cut",
    }


# --- torch.distributed.checkpoint -----------------------------------------------------------------


def test_a_save_over_an_old_checkpoint_is_seen_by_its_times(tmp_path: Path) -> None:
    path = write(tmp_path / "step-1", dcp_files())
    now = time.time_ns()
    os.utime(path / ".metadata", ns=(now, now))
    os.utime(path / "__1_0.distcp", ns=(now, now + 10_000_000))
    assert reason(path) == (
        "__1_0.distcp is newer than .metadata: saved over, or copied without its times"
    )


def test_zeros_where_a_file_should_end_are_seen(tmp_path: Path) -> None:
    path = write(tmp_path / "step-1", dcp_files())
    size = (path / "__0_0.distcp").stat().st_size
    (path / "__0_0.distcp").write_bytes(bytes(size))
    (path / ".metadata").touch()
    assert "ends in zeros" in reason(path)


def test_a_flipped_byte_is_seen_by_deep_alone(tmp_path: Path) -> None:
    path = write(tmp_path / "step-1", dcp_files())
    raw = bytearray((path / "__1_0.distcp").read_bytes())
    raw[raw.index(bytes(range(1, 65))) + 7] ^= 1
    (path / "__1_0.distcp").write_bytes(raw)
    (path / ".metadata").touch()
    assert isinstance(judge(path), Checkpoint)
    assert "CRC-32" in reason(path, deep=True)


def test_a_save_without_metadata_is_unfinished_and_no_reason_to_stop_a_job(tmp_path: Path) -> None:
    path = write(tmp_path / "step-1", dcp_files())
    (path / ".metadata").rename(path / ".metadata.tmp")
    assert reason(path) == ".metadata is missing: it is written last"
    assert last_complete(tmp_path).verdict == "none"


def test_pickles_are_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    evil = b"cos\nsystem\n(X" + len(f"touch {mark}").to_bytes(4, "little")
    evil += f"touch {mark}".encode() + b"tR."
    write(tmp_path / "step-1", {**dcp_files(), ".metadata": evil})
    write(tmp_path / "iter_0000002", {**torch_dist_files(), ".metadata": evil})
    rows = last.every(tmp_path)
    assert [row.why for row in rows if isinstance(row, PassedOver)] == [
        ".metadata names no data files"
    ] * 2
    assert not mark.exists()


def test_metadata_that_points_elsewhere_or_costs_the_earth(tmp_path: Path) -> None:
    shared = b")" + b"2\x86" * 5000  # (t, t) of (t, t) ...: 2^5000 leaves to hash
    deep = b")" + b"\x85" * 300_000
    info = instance("m", "S", {"relative_path": "__9_0.distcp", "offset": 0, "length": 1})
    pairs = b"}(" + shared + info + deep + info + b"u"
    nested = pickle_of(instance("m", "Metadata", {"storage_data": pairs}))
    hostile = {
        "does not lie inside": dcp_metadata([("../x.distcp", 0, 1)]),
        "does not lie": dcp_metadata([("/etc/passwd", 0, 1)]),
        "negative": dcp_metadata([("__0_0.distcp", -5, 1)]),
        "__9_0.distcp is missing": nested,
        "without file": pickle_of(
            instance("m", "Metadata", {"storage_data": {"k": instance("m", "S", {})}})
        ),
        "cannot be decoded": b"\x80\x02]" + b"u" * 100_000 + b".",
        "names no data": b"\x80\x02]" + b"]" * 100_000 + b".",
    }
    for number, (why, raw) in enumerate(hostile.items()):
        path = write(tmp_path / f"step-{number}", {"__0_0.distcp": b"x", ".metadata": raw})
        assert why in reason(path)


def test_damage_is_a_reason_and_never_a_crash(tmp_path: Path) -> None:
    randomness, files = random.Random(3), dcp_files()
    saved = torch_save({"global_step": 1})
    for number in range(300):
        raw = bytearray(files[".metadata"] if number % 2 else saved)
        for _ in range(randomness.randint(1, 8)):
            raw[randomness.randrange(len(raw))] = randomness.randrange(256)
        if number % 2:
            path = write(tmp_path / "step-1", {**files, ".metadata": bytes(raw)})
        else:
            path = write(tmp_path, {"step=1.ckpt": bytes(raw)}) / "step=1.ckpt"
        row = judge(path, deep=True)
        assert isinstance(row, Checkpoint) or not row.unreadable


# --- stale storage --------------------------------------------------------------------------------


@pytest.mark.parametrize("lasting", [False, True])
def test_stale_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lasting: bool) -> None:
    write(tmp_path / "step-1", dcp_files())
    write(tmp_path / "step-2", dcp_files())
    real, stale = os.open, {"left": 10**6 if lasting else 1}

    def failing(path: object, *args: object) -> int:
        if "step-2/__1" in str(path) and stale["left"]:
            stale["left"] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", failing)
    search = last_complete(tmp_path)
    assert search.found.step == (1 if lasting else 2)
    for each in search.passed_over:
        assert each.unreadable
        assert "__1_0.distcp" in each.why
        assert "not whole as far as can be seen" in each.why


def test_a_fifo_in_place_of_a_file_does_not_hold_us(tmp_path: Path) -> None:
    path = write(tmp_path / "step-1", dcp_files())
    (path / "__0_0.distcp").unlink()
    os.mkfifo(path / "__0_0.distcp")
    assert reason(path) == "__0_0.distcp is not a regular file"


# --- single files ---------------------------------------------------------------------------------


def test_every_cut_of_what_torch_really_writes_is_seen(tmp_path: Path) -> None:
    raw = zlib.decompress(base64.b85decode(REAL))
    file = tmp_path / "last.ckpt"
    file.write_bytes(raw)
    row = judge(file, deep=True)
    assert isinstance(row, Checkpoint)
    assert (row.step, row.format, row.deep) == (7, "lightning", True)
    for size in range(len(raw)):
        file.write_bytes(raw[:size])
        reason(file)
    for grown in (raw + b"\0", b"\0" + raw, raw + raw, raw[:40] + raw):
        file.write_bytes(grown)
        reason(file)


def test_torch_files_count_only_where_they_say_their_step(tmp_path: Path) -> None:
    (tmp_path / "dataset.pt").write_bytes(torch_save({"rows": 5}))
    (tmp_path / "notes.pth").write_bytes(b"nothing")
    assert last_complete(tmp_path).verdict == "none"
    (tmp_path / "model.pt").write_bytes(torch_save({"step": 9}))
    found = last_complete(tmp_path).found
    assert (found.path.name, found.step, found.format) == ("model.pt", 9, "torch-save")


# --- what is particular to each framework ---------------------------------------------------------


def test_what_is_recorded_must_agree_with_the_name(tmp_path: Path) -> None:
    assert "is of step 40, not 41" in reason(write(tmp_path / "global_step41", deepspeed_files()))
    legacy = write(tmp_path / "iter_0000041", WHOLE["megatron-legacy"][2]())
    assert "is of iteration 40, not 41" in reason(legacy)


def test_nemo_marker(tmp_path: Path) -> None:
    path = make(tmp_path, "nemo")
    marker = tmp_path / f"{path.name}-unfinished"
    marker.touch()
    assert reason(path) == f"its marker {marker.name} is still there"
    marker.unlink()
    assert isinstance(judge(path), Checkpoint)
    file = tmp_path / "gpt--step=7.ckpt"
    file.write_bytes(torch_save({"global_step": 7}))
    (tmp_path / "gpt--step=7-unfinished").touch()
    assert "marker" in reason(file)


def test_hf_model_only_and_missing_parts(tmp_path: Path) -> None:
    files = hf_files()
    del files["optimizer.pt"], files["scheduler.pt"], files["rng_state_0.pth"]
    path = write(tmp_path / "checkpoint-40", files)
    assert reason(path) == "optimizer.pt is missing"
    args = instance("transformers.training_args", "TrainingArguments", {"save_only_model": True})
    (path / "training_args.bin").write_bytes(torch_save(args))
    (path / "trainer_state.json").touch()
    assert isinstance(judge(path), Checkpoint)
    now = time.time_ns()
    os.utime(path / "trainer_state.json", ns=(now, now - 10_000_000_000))
    assert "newer than trainer_state.json" in reason(path)
    (path / "trainer_state.json").touch()
    write(path, {"rng_state_0.pth": torch_save({}), "rng_state_2.pth": torch_save({})})
    assert "rng_state_1.pth is missing" in reason(path)
    (path / "trainer_state.json").unlink()
    assert last_complete(tmp_path).verdict == "none"


def test_an_index_that_promises_what_a_shard_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "checkpoint-40", hf_files())
    index = json.loads((path / "model.safetensors.index.json").read_bytes())
    index["weight_map"]["c"] = index["weight_map"]["a"]
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "trainer_state.json").touch()
    assert "lacks c" in reason(path)


def test_lightning_saved_over_and_not_to_the_end(tmp_path: Path) -> None:
    path = make(tmp_path, "lightning, sharded")
    now = time.time_ns()
    os.utime(path / "meta.pt", ns=(now, now - 10_000_000_000))
    assert reason(path) == "meta.pt is older than .metadata: saved over, and not to the end"
    (path / "meta.pt").unlink()
    assert last_complete(tmp_path).verdict == "none"


def test_what_hpctl_cannot_follow_may_be_whole(tmp_path: Path) -> None:
    path = write(tmp_path / "step-1", dcp_files())
    shared = instance("m", "S", {"relative_path": "__0_0.distcp", "offset": 0, "length": 9})
    pairs = b"}(" + text("a") + shared + b"q\x07" + text("b") + b"h\x07" + b"u"
    (path / ".metadata").write_bytes(pickle_of(instance("m", "M", {"storage_data": pairs})))
    assert last_complete(tmp_path).verdict == "unreadable"


# --- the command ----------------------------------------------------------------------------------
