"""A save over an older checkpoint that was killed half-way: seen where the files can tell."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

from hpctl.jobs.checkpoints import search
from hpctl.jobs.checkpoints.search import Checkpoint, PassedOver, judge, last_complete
from tests.unit.checkpoint_files import deepspeed_files, make, pickle_of, text, write


def reason(path: Path) -> str:
    row = search.judge(path)
    assert isinstance(row, PassedOver), row
    assert not row.unreadable, row
    return row.why


def older(path: Path, seconds: int = 60) -> None:
    times = path.stat()
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns - seconds * 10**9))


def test_a_deepspeed_tag_that_later_steps_save_over(tmp_path: Path) -> None:
    path = write(tmp_path / "best", deepspeed_files(40))
    assert isinstance(search.judge(path), Checkpoint)
    files = deepspeed_files(50)
    (path / "mp_rank_01_model_states.pt").write_bytes(files["mp_rank_01_model_states.pt"])
    assert reason(path) == (
        "mp_rank_01_model_states.pt is of step 50, mp_rank_00_model_states.pt of 40: saved over"
    )


def test_a_rank_of_deepspeed_that_saved_half_over_an_older_save(tmp_path: Path) -> None:
    path = write(tmp_path / "global_step40", deepspeed_files(40))
    older(path / "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt")
    assert reason(path) == (
        "mp_rank_01_model_states.pt is newer than bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt:"
        " saved over, or copied without its times"
    )


def test_a_rank_of_megatron_that_saved_half_over_an_older_save(tmp_path: Path) -> None:
    path = make(tmp_path, "megatron-legacy")
    older(path / "mp_rank_01_000/model_optim_rng.pt")
    assert reason(path) == (
        "mp_rank_01_000/distrib_optim.pt is newer than model_optim_rng.pt: saved over, or copied"
        " without its times"
    )


def test_what_megatrons_pointer_has_not_reached_may_be_of_two_attempts(tmp_path: Path) -> None:
    path = make(tmp_path, "megatron-legacy")
    pointer = tmp_path / "latest_checkpointed_iteration.txt"
    for said in ("40", "60", "release", "", "4\x000"):
        pointer.write_text(said)
        assert isinstance(judge(path), Checkpoint), said
    pointer.write_text("20")
    assert reason(path) == f"{pointer.name} says 20: this save was not finished"
    pointer.unlink()
    assert reason(path) == f"no {pointer.name} beside it: no save was finished here"


def test_a_saved_object_of_any_size_says_its_step(tmp_path: Path) -> None:
    many = b"}(" + b"".join(text(f"layer.{n}") + b"K\x07" for n in range(9000)) + b"u"
    ordered = b"ccollections\nOrderedDict\n)R(" + text("step") + b"K\x01" + text("x") + many + b"u"
    saved = pickle_of(ordered)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", saved)
        archive.writestr("archive/version", b"3\n")
    (tmp_path / "model.pt").write_bytes(out.getvalue())
    found = last_complete(tmp_path).found
    assert found.step == 1
