"""The frameworks' checkpoints: whole only when every byte that can be missed is there."""

import errno
import json
import os
import time
from pathlib import Path

import pytest

from hpctl.checkpoints import files as starts
from hpctl.checkpoints import search as last
from hpctl.checkpoints.search import (
    CompleteCheckpoint,
    SkippedCheckpoint,
    find_newest_complete_checkpoint_in_tiers,
    verify_checkpoint,
)
from tests.checkpoints.checkpoint_files import (
    BESIDE,
    OPTIONAL,
    WHOLE,
    dcp_files,
    dcp_metadata,
    deepspeed_files,
    hf_files,
    instance,
    lightning_deepspeed_files,
    make,
    pickle_of,
    text,
    torch_dist_files,
    torch_save,
    write,
)

# What torch 2.13's torch.save({"global_step": 7}) writes: 64-bit end records included.


def age(path: Path, seconds: float) -> None:
    """Make a file that much older than now; newer, where it is negative."""
    when = time.time_ns() - int(seconds * 10**9)
    os.utime(path, ns=(when, when))


def reason(path: Path, *, deep: bool = False) -> str:
    row = verify_checkpoint(path, deep=deep)
    assert isinstance(row, SkippedCheckpoint), row
    assert not row.unreadable, row
    return row.why


@pytest.mark.parametrize("name", WHOLE)
def test_whole(tmp_path, name):
    path = make(tmp_path, name)
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.path, found.step, found.format) == (path, 40, WHOLE[name][0])
    assert isinstance(verify_checkpoint(path, deep=True), CompleteCheckpoint)


@pytest.mark.parametrize("name", WHOLE)
def test_without_any_one_of_its_files_it_is_not_whole(tmp_path, name):
    files = WHOLE[name][2]()
    for number, gone in enumerate(sorted(files.keys() - OPTIONAL)):
        kept = {file: raw for file, raw in files.items() if file != gone}
        path = write(tmp_path / str(number) / WHOLE[name][1], kept)
        write(path.parent, BESIDE.get(name, {}))
        why = reason(path)
        assert "\n" not in why
        if Path(gone).name.startswith("__"):
            assert Path(gone).name in why, "the reason names the file"


@pytest.mark.parametrize("name", WHOLE)
def test_with_any_one_of_its_files_cut_it_is_not_whole(tmp_path, name):
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
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint)


@pytest.mark.parametrize(
    ("name", "file", "seconds", "why"),
    [
        ("torch-dcp", "__1_0.distcp", -0.01, "__1_0.distcp is newer than .metadata"),
        ("lightning, sharded", "meta.pt", 10, "meta.pt is older than .metadata"),
        ("megatron-torch-dist", "common.pt", -60, "common.pt is newer than .metadata"),
        ("deepspeed", "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt", 60, "mp_rank_01_model_sta"),
        ("megatron-legacy", "mp_rank_01_000/model_optim_rng.pt", 60, "distrib_optim.pt is newer"),
        ("hf-trainer, FSDP", "pytorch_model_fsdp_0/.metadata", -60, "newer than trainer_state"),
        ("hf-trainer, FSDP", "optimizer_0/.metadata", -60, "newer than trainer_state.json"),
    ],
)
def test_a_save_over_an_older_one_is_seen_by_its_times(tmp_path, name, file, seconds, why):
    path = make(tmp_path, name)
    age(path / file, seconds)
    assert why in reason(path)
    assert "overwrote" in reason(path)


@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("deepspeed", "bf16_zero_pp_rank_1_mp_rank_01_optim_states.pt"),
        ("megatron-legacy", "mp_rank_00_000/*.pt"),
    ],
)
def test_a_rank_that_did_not_save_again_after_a_restart_is_seen(tmp_path, name, old):
    path, now = make(tmp_path, name), time.time_ns()
    for before in path.rglob("*.pt"):
        os.utime(before, ns=(now - 60 * 10**9,) * 2)
    starts.record_job_start(path.parent)
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint), (
        "all of it is from before the restart"
    )
    for after in set(path.rglob("*.pt")) - set(path.glob(old)):
        os.utime(after, ns=(now + 60 * 10**9,) * 2)
    assert "older than the job's restart" in reason(path)
    (path.parent / starts.STARTS).unlink()
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint), (
        "this is what the noted start is for"
    )


def test_what_a_start_cannot_note_it_does_without(tmp_path):
    starts.record_job_start(tmp_path / "absent")
    (tmp_path / starts.STARTS).write_bytes(b"x\n" + b"9" * 30 + b"\n1\n" * 40_000)
    starts.record_job_start(tmp_path)
    assert (tmp_path / starts.STARTS).stat().st_size < 64 << 10
    assert isinstance(verify_checkpoint(make(tmp_path, "deepspeed")), CompleteCheckpoint)
    (tmp_path / starts.STARTS).unlink()
    os.mkfifo(tmp_path / starts.STARTS)
    starts.record_job_start(tmp_path)
    assert isinstance(verify_checkpoint(make(tmp_path, "deepspeed")), CompleteCheckpoint)


def test_zeros_where_a_file_should_end_are_seen(tmp_path):
    path = write(tmp_path / "step-1", dcp_files())
    (path / "__0_0.distcp").write_bytes(bytes((path / "__0_0.distcp").stat().st_size))
    (path / ".metadata").touch()
    assert "ends in zeros" in reason(path)


def test_a_flipped_byte_is_seen_by_deep_alone(tmp_path):
    path = write(tmp_path / "step-1", dcp_files())
    raw = bytearray((path / "__1_0.distcp").read_bytes())
    raw[raw.index(bytes(range(1, 65))) + 7] ^= 1
    (path / "__1_0.distcp").write_bytes(raw)
    (path / ".metadata").touch()
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint)
    assert "CRC-32" in reason(path, deep=True)


def test_pickles_are_never_executed(tmp_path):
    mark = tmp_path / "executed"
    evil = b"cos\nsystem\n(X" + len(f"touch {mark}").to_bytes(4, "little")
    evil += f"touch {mark}".encode() + b"tR."
    write(tmp_path / "step-1", {**dcp_files(), ".metadata": evil})
    write(tmp_path / "iter_0000002", {**torch_dist_files(), ".metadata": evil})
    rows = last.list_checkpoints(tmp_path)
    assert [row.why for row in rows if isinstance(row, SkippedCheckpoint)] == [
        ".metadata lists no data files"
    ] * 2
    assert not mark.exists()


def test_metadata_that_points_elsewhere_or_costs_the_earth(tmp_path):
    shared = b")" + b"2\x86" * 5000  # (t, t) of (t, t) ...: 2^5000 leaves to hash
    deep = b")" + b"\x85" * 300_000
    info = instance("m", "S", {"relative_path": "__9_0.distcp", "offset": 0, "length": 1})
    pairs = b"}(" + shared + info + deep + info + b"u"
    nested = pickle_of(instance("m", "Metadata", {"storage_data": pairs}))
    hostile = {
        "outside the checkpoint": dcp_metadata([("../x.distcp", 0, 1)]),
        "'/etc/passwd', which is outside": dcp_metadata([("/etc/passwd", 0, 1)]),
        "negative": dcp_metadata([("__0_0.distcp", -5, 1)]),
        "__9_0.distcp is missing": nested,
        "without its file, offset and length": pickle_of(
            instance("m", "Metadata", {"storage_data": {"k": instance("m", "S", {})}})
        ),
        "cannot be decoded": b"\x80\x02]" + b"u" * 100_000 + b".",
        "lists no data": b"\x80\x02]" + b"]" * 100_000 + b".",
    }
    for number, (why, raw) in enumerate(hostile.items()):
        path = write(tmp_path / f"step-{number}", {"__0_0.distcp": b"x", ".metadata": raw})
        assert why in reason(path)


@pytest.mark.parametrize("lasting", [False, True])
def test_stale_handles(tmp_path, monkeypatch, lasting):
    write(tmp_path / "step-1", dcp_files())
    write(tmp_path / "step-2", dcp_files())
    real, stale = os.open, {"left": 10**6 if lasting else 1}

    def failing(path, *args) -> int:
        if "step-2/__1" in str(path) and stale["left"]:
            stale["left"] -= 1
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return real(path, *args)

    monkeypatch.setattr(os, "open", failing)
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert search.found.step == (1 if lasting else 2)
    for each in search.passed_over:
        assert each.unreadable
        assert "__1_0.distcp" in each.why
        assert "not whole as far as can be seen" in each.why


def test_every_cut_of_what_torch_really_writes_is_seen(tmp_path):
    raw = Path(__file__).with_name("torch_2_13_saved.ckpt").read_bytes()
    file = tmp_path / "last.ckpt"
    file.write_bytes(raw)
    row = verify_checkpoint(file, deep=True)
    assert (row.step, row.format, row.deep) == (7, "lightning", True)
    for size in range(len(raw)):
        file.write_bytes(raw[:size])
        reason(file)
    for grown in (raw + b"\0", b"\0" + raw, raw + raw, raw[:40] + raw):
        file.write_bytes(grown)
        reason(file)


def test_torch_files_count_only_where_they_say_their_step(tmp_path):
    (tmp_path / "dataset.pt").write_bytes(torch_save({"rows": 5}))
    (tmp_path / "notes.pth").write_bytes(b"nothing")
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "none"
    (tmp_path / "model.pt").write_bytes(torch_save({"step": 9}))
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.path.name, found.step, found.format) == ("model.pt", 9, "torch-save")


def test_what_is_recorded_must_agree_with_the_name(tmp_path):
    assert "is from step 40, not from step 41" in reason(
        write(tmp_path / "global_step41", deepspeed_files())
    )
    legacy = write(tmp_path / "iter_0000041", WHOLE["megatron-legacy"][2]())
    assert "is from iteration 40, not from iteration 41" in reason(legacy)


def test_nemo_marker(tmp_path):
    path = make(tmp_path, "nemo")
    marker = tmp_path / f"{path.name}-unfinished"
    marker.touch()
    assert reason(path) == f"the marker file {marker.name} still exists: the save has not finished"
    marker.unlink()
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint)
    file = tmp_path / "gpt--step=7.ckpt"
    file.write_bytes(torch_save({"global_step": 7}))
    (tmp_path / "gpt--step=7-unfinished").touch()
    assert "marker" in reason(file)


def test_hf_model_only_and_missing_parts(tmp_path):
    files = hf_files()
    del files["optimizer.pt"], files["scheduler.pt"], files["rng_state_0.pth"]
    path = write(tmp_path / "checkpoint-40", files)
    assert reason(path) == "optimizer.pt is missing"
    args = instance("transformers.training_args", "TrainingArguments", {"save_only_model": True})
    (path / "training_args.bin").write_bytes(torch_save(args))
    (path / "trainer_state.json").touch()
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint)
    age(path / "trainer_state.json", 10)
    assert "newer than trainer_state.json" in reason(path)
    (path / "trainer_state.json").touch()
    write(path, {"rng_state_0.pth": torch_save({}), "rng_state_2.pth": torch_save({})})
    assert "rng_state_1.pth is missing" in reason(path)
    (path / "trainer_state.json").unlink()
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "none"


def test_an_index_that_promises_what_a_shard_lacks(tmp_path):
    path = write(tmp_path / "checkpoint-40", hf_files())
    index = json.loads((path / "model.safetensors.index.json").read_bytes())
    index["weight_map"]["c"] = index["weight_map"]["a"]
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    (path / "trainer_state.json").touch()
    assert "does not contain the tensor c" in reason(path)


@pytest.mark.parametrize(
    ("name", "last"), [("torch-dcp", ".metadata"), ("lightning, sharded", "meta.pt")]
)
def test_a_save_that_has_not_ended_is_no_reason_to_stop_a_job(tmp_path, name, last):
    path = make(tmp_path, name)
    (path / last).rename(path / f"{last}.tmp")
    assert (
        reason(path) == f"{last} is missing: the save writes this file last, so it has not finished"
    )
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "none"


def test_what_hpctl_cannot_follow_may_be_whole(tmp_path):
    path = write(tmp_path / "step-1", dcp_files())
    shared = instance("m", "S", {"relative_path": "__0_0.distcp", "offset": 0, "length": 9})
    pairs = b"}(" + text("a") + shared + b"q\x07" + text("b") + b"h\x07" + b"u"
    (path / ".metadata").write_bytes(pickle_of(instance("m", "M", {"storage_data": pairs})))
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "unreadable"


def test_a_deepspeed_tag_that_later_steps_save_over(tmp_path):
    path = write(tmp_path / "best", deepspeed_files(40))
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint)
    files = deepspeed_files(50)
    (path / "mp_rank_01_model_states.pt").write_bytes(files["mp_rank_01_model_states.pt"])
    assert reason(path) == (
        "mp_rank_01_model_states.pt is from step 50, but mp_rank_00_model_states.pt is "
        "from step 40: a newer save overwrote a part of the checkpoint"
    )


def test_what_megatrons_pointer_has_not_reached_may_be_of_two_attempts(tmp_path):
    path = make(tmp_path, "megatron-legacy")
    pointer = tmp_path / "latest_checkpointed_iteration.txt"
    for message in ("40", "60", "release", "", "4\x000"):
        pointer.write_text(message)
        assert isinstance(verify_checkpoint(path), CompleteCheckpoint), message
    pointer.write_text("20")
    assert reason(path) == (
        f"{pointer.name} names iteration 20 as the last finished save: this save has not finished"
    )
    pointer.unlink()
    assert (
        reason(path)
        == f"{pointer.name} is missing in the checkpoint directory: no save has finished there"
    )


def test_a_saved_object_of_any_size_says_its_step(tmp_path):
    many = b"}(" + b"".join(text(f"layer.{n}") + b"K\x07" for n in range(9000)) + b"u"
    ordered = b"ccollections\nOrderedDict\n)R(" + text("step") + b"K\x01" + text("x") + many + b"u"
    (tmp_path / "model.pt").write_bytes(torch_save(ordered))
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).found.step == 1


_LIGHTNINGS = {"pytorch-lightning_version": "2.6.6", "global_step": 40}


@pytest.mark.parametrize("name", ["one file", "lightning, sharded", "lightning, DeepSpeed"])
def test_lightnings_weights_alone_are_no_point_to_resume_from(tmp_path, name):
    sizes = {"dp_world_size": 2, "mp_world_size": 1, "global_steps": 9, "optimizer": None}
    path = tmp_path / "best-step=50.ckpt" if name == "one file" else make(tmp_path, name)
    files = {"one file": "", "lightning, sharded": "meta.pt"}
    file = path / files.get(name, "checkpoint/mp_rank_00_model_states.pt")
    file.write_bytes(torch_save({**sizes, **_LIGHTNINGS}))
    age(file, 60 if "DeepSpeed" in name else 0)
    assert "has only model weights, from which Lightning cannot resume" in reason(path)
    file.write_bytes(torch_save({**sizes, **_LIGHTNINGS, "lr_schedulers": b"]"}))
    age(file, 60 if "DeepSpeed" in name else 0)
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint)


def test_lightning_with_deepspeed_is_not_taken_for_nothing(tmp_path):
    path = write(tmp_path / "last.ckpt", lightning_deepspeed_files(40))
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.step, found.format) == (40, "lightning")
    (path / "checkpoint/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert "of data rank 1, model rank 0 is missing" in reason(path)
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "incomplete"
    (path / "latest").unlink()  # killed in its first save: no reason to stop a job
    assert (
        reason(path) == "latest is missing: the save writes this file last, so it has not finished"
    )
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "none"


@pytest.mark.parametrize("name", ["pytorch_model_fsdp.bin", "model.safetensors"])
def test_each_model_file_of_the_trainer_may_be_the_one_it_loads(tmp_path, name):
    # With FSDP's full state the Trainer loads the first; without an index it would not look for.
    assert name in reason(write(tmp_path / "checkpoint-40", {name: b""} | hf_files()))


def test_a_model_of_fsdp_beside_an_adapter(tmp_path):
    path = make(tmp_path, "hf-trainer, FSDP")
    shard = hf_files()["model-00001-of-00002.safetensors"]
    (path / "adapter_model.safetensors").write_bytes(shard)
    (path / "trainer_state.json").touch()
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint)
    (path / "pytorch_model_fsdp_0/__1_0.distcp").unlink()
    assert "pytorch_model_fsdp_0: __1_0.distcp is missing" in reason(path)


@pytest.mark.parametrize("said", ["", "global_step30"])
def test_the_trainer_goes_by_deepspeeds_pointer(tmp_path, said):
    path = make(tmp_path, "hf-trainer, DeepSpeed")
    (path / "latest").write_text(said)
    assert reason(path) == f"latest names the directory {said!r}, which does not exist"


def test_a_long_history_of_the_trainer_is_no_defect(tmp_path):
    path = write(tmp_path / "checkpoint-40", hf_files())
    long = b'{"loss": 0.1}, {"loss": NaN, "text": "' + b"x" * (65 << 20) + b'"}'
    raw = b'{"global_step": 40, "log_history": [' + long + b"]}"
    (path / "trainer_state.json").write_bytes(raw)
    assert isinstance(verify_checkpoint(path), CompleteCheckpoint)
    (path / "trainer_state.json").write_bytes(raw[:-1])
    assert "is not valid JSON" in reason(path)


def test_a_history_beyond_what_is_read_may_be_whole(tmp_path):
    os.truncate(write(tmp_path / "checkpoint-40", hf_files()) / "trainer_state.json", 1 << 30)
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "unreadable"


@pytest.mark.parametrize("said", [{"format": "orbax"}, {"files": ["a"]}, ["a", "b"]])
def test_a_manifest_of_something_else_says_nothing_of_a_checkpoint(tmp_path, said):
    (make(tmp_path, "hf-trainer") / "manifest.json").write_text(json.dumps(said))
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).found.format == "hf-trainer"
    (tmp_path / "data").mkdir()
    (tmp_path / "data/manifest.json").write_text(json.dumps(said))
    assert [
        each.claimed for each in find_newest_complete_checkpoint_in_tiers(tmp_path).passed_over
    ] == [False]


def test_one_that_was_deleted_since_it_was_listed_is_not_unreadable(tmp_path):
    row = verify_checkpoint(tmp_path / "step-10")
    assert row.why == "the checkpoint was deleted while hpctl read it"
    assert (row.unreadable, row.claimed) == (False, False)


def test_a_directory_whose_name_is_a_digit_and_no_number(tmp_path):
    (tmp_path / "\N{SUPERSCRIPT TWO}").mkdir()
    path = make(tmp_path, "torch-dcp")
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).found.path == path


@pytest.mark.parametrize(
    ("state", "verdict", "why"),
    [
        ({"epochs_run": 40}, "none", "recipe_state.pt is from epoch 39: a save is still running"),
        (
            {"epochs_run": 42},
            "incomplete",
            ("recipe_state.pt is from epoch 41, but torchtune can resume"),
        ),
        ({"seed": 1}, "incomplete", "recipe_state.pt has no epochs_run"),
    ],
)
def test_torchtune_continues_from_one_epoch_alone(tmp_path, state, verdict, why):
    path = make(tmp_path, "torchtune")
    write(tmp_path, {"recipe_state/recipe_state.pt": torch_save(state)})
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == verdict
    assert why in reason(path)


def test_torchtunes_parts_are_all_needed_and_of_one_save(tmp_path):
    path = make(tmp_path, "torchtune")
    state = tmp_path / "recipe_state/recipe_state.pt"
    age(path / "model-00002-of-00002.safetensors", -60)
    assert "model-00002-of-00002.safetensors is newer than recipe_state" in reason(path)
    age(path / "model-00002-of-00002.safetensors", 60)
    state.write_bytes(state.read_bytes()[:-1])
    assert "recipe_state.pt has no zip end" in reason(path)
    (path / "model-00001-of-00002.safetensors").unlink()
    assert "only 1 of 2 model files exist" in reason(path)
    state.unlink()
    state.parent.rmdir()
    assert "no known format" in reason(path)  # others name their directories so, too


def test_torchtunes_adapter_alone(tmp_path):
    make(tmp_path, "torchtune")
    path = write(tmp_path / "epoch_40", {"adapter_model.pt": torch_save({"w": 1})})
    for name in (*path.glob("model*"),):
        name.unlink()
    age(path / "adapter_model.pt", 60)
    assert isinstance(verify_checkpoint(path, deep=True), CompleteCheckpoint)


def test_composer_says_its_step_in_its_state(tmp_path):
    clock = {"Timestamp": {"epoch": 0, "batch": 12}}
    write(tmp_path, {"ep0-ba12-rank0.pt": torch_save({"state": {"timestamp": clock}, "rng": 1})})
    write(tmp_path, {"weights.pt": torch_save({"state": {"model": 1}})})
    write(tmp_path, {"latest-rank0.pt.symlink": b"ep0-ba12-rank0.pt"})
    (tmp_path / "latest-rank0.pt").symlink_to("ep0-ba12-rank0.pt")
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.path.name, found.step, found.format) == ("ep0-ba12-rank0.pt", 12, "torch-save")
    assert [row.path.name for row in last.list_checkpoints(tmp_path)] == ["ep0-ba12-rank0.pt"]


def test_a_link_to_one_beside_it_is_not_another(tmp_path):
    write(tmp_path / "ep0-ba40", dcp_files())
    (tmp_path / "latest-rank0").symlink_to("ep0-ba40")
    write(tmp_path / "elsewhere/step-50", dcp_files())
    (tmp_path / "step-50").symlink_to("elsewhere/step-50")
    (tmp_path / "loop").symlink_to("loop")
    rows = [row for row in last.list_checkpoints(tmp_path) if isinstance(row, CompleteCheckpoint)]
    assert [(row.path.name, row.step) for row in rows] == [("step-50", 50), ("ep0-ba40", 40)]
