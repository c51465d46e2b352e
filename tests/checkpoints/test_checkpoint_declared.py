"""Files that --checkpoint-files declares: grouped by step, complete as far as can be known."""

import io
import json
import os
import pickle
import zipfile

import pytest

from hpctl.checkpoints import contents, first_save
from hpctl.checkpoints.explain import describe_newest_checkpoint
from hpctl.checkpoints.files import STARTS, read_recorded_job_starts
from hpctl.checkpoints.patterns import (
    parse_checkpoint_file_patterns,
    suggest_checkpoint_file_patterns,
)
from hpctl.checkpoints.resume import (
    CheckpointSearchPlaces,
    find_newest_resume_point,
    find_resume_point,
    read_resume_places,
)
from hpctl.checkpoints.search import (
    CompleteCheckpoint,
    find_newest_complete_checkpoint_in_tiers,
    list_checkpoints,
    verify_checkpoint,
)
from hpctl.engine.explain_view import JobToExplain
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.registration import JobRegistration
from hpctl.vocabulary.run_policy import RunPolicy
from tests.checkpoints.checkpoint_files import torch_save, write
from tests.checkpoints.test_checkpoint_own_format import run
from tests.cli.worlds import world
from tests.fakes.values import slurm_job

OLD_S = 1_700_000_000
RAW = b"weights of a format of its own" * 100


def old(root) -> None:
    """As files look that nothing has written to for long."""
    for path in root.rglob("*"):
        os.utime(path, (OLD_S, OLD_S))


def find(root, *patterns):
    return find_newest_complete_checkpoint_in_tiers(
        root, declared=parse_checkpoint_file_patterns(patterns)
    )


def test_a_directory_without_any_save_has_no_checkpoint(tmp_path):
    assert find(tmp_path, "ckpt_{step}_rank*.bin").found is None
    write(tmp_path, {"notes.txt": RAW})
    assert find(tmp_path, "ckpt_{step}_rank*.bin").found is None


def test_one_file_a_rank_is_one_checkpoint_of_as_many_files_as_before(tmp_path):
    for step in (10, 20, 30):
        write(tmp_path, {f"ckpt_{step}_rank{r}.bin": RAW for r in range(4)})
    old(tmp_path)
    (tmp_path / "ckpt_30_rank3.bin").unlink()
    search = find(tmp_path, "ckpt_{step}_rank*.bin")
    assert (search.found.step, search.found.format) == (20, "declared")
    assert search.found.path == tmp_path / "ckpt_20_rank0.bin"
    assert search.found.unproven == "what is in ckpt_20_rank0.bin and 3 more"
    assert [each.why for each in search.passed_over] == [
        "3 of 4 files of ckpt_{step}_rank*.bin are there, as step 20 has them"
    ]


def test_fewer_files_are_compared_with_the_last_complete_step(tmp_path):
    """Two interrupted saves in a row do not make each other complete."""
    for step, ranks in ((10, 2), (19, 1), (20, 1)):
        write(
            tmp_path, {f"ckpt_{step}_rank{r}.pt": torch_save({"step": step}) for r in range(ranks)}
        )
    search = find(tmp_path, "ckpt_{step}_rank*.pt")
    assert search.found.step == 10
    assert len(search.passed_over) == 2


def test_a_rank_that_is_missing_between_others_is_seen_without_a_step_before(tmp_path):
    write(tmp_path, {f"step_5/rank_{r}.pt": torch_save({"w": r}) for r in (0, 2)})
    search = find(tmp_path, "step_{step}/rank_*.pt")
    assert "rank_1" in search.passed_over[0].why
    write(tmp_path, {"step_5/rank_1.pt": torch_save({"w": 1})})
    found = find(tmp_path, "step_{step}/rank_*.pt").found
    assert (found.path, found.step) == (tmp_path / "step_5", 5)
    assert found.unproven == "whether a step has more than 3 files"


def test_numbers_of_nodes_are_no_ranks(tmp_path):
    for step in (1, 2):
        write(tmp_path, {f"s{step}-node{n}.pt": torch_save({"w": n}) for n in (3, 9)})
    assert find(tmp_path, "s{step}-node*.pt").found.step == 2


def test_separate_files_of_model_and_optimizer_are_needed_both(tmp_path):
    for step in (100, 200):
        write(tmp_path, {f"model_{step}.safetensors": safetensors(), f"optim_{step}.pt": b""})
        write(tmp_path, {f"optim_{step}.pt": torch_save({"state": {}})})
    patterns = ("model_{step}.safetensors", "optim_{step}.pt")
    found = find(tmp_path, *patterns).found
    assert found.step == 200
    assert found.unproven == ""
    (tmp_path / "optim_200.pt").unlink()
    assert find(tmp_path, *patterns).found.step == 100
    (tmp_path / "model_100.safetensors").write_bytes(safetensors()[:-1])
    assert find(tmp_path, *patterns).verdict == "incomplete"


def test_files_of_two_saves_in_place_are_not_one_checkpoint(tmp_path):
    patterns = ("model.pt", "optim.pt")
    write(tmp_path, {f"{name}.pt": torch_save({"step": 7}) for name in ("model", "optim")})
    found = find(tmp_path, *patterns).found
    assert (found.path, found.step) == (tmp_path / "model.pt", 7)
    assert "whether its files are of one save" in found.unproven
    write(tmp_path, {"model.pt": torch_save({"step": 8})})
    search = find(tmp_path, *patterns)
    assert search.found is None
    assert (
        search.passed_over[0].why
        == "its files are from different steps, 7 and 8: a newer save overwrote a part of them"
    )


def test_a_start_of_the_job_between_the_files_of_a_step_is_a_mixture(tmp_path):
    write(tmp_path, {f"ckpt_1_rank{r}.pt": torch_save({"step": 1}) for r in range(2)})
    os.utime(tmp_path / "ckpt_1_rank0.pt", (OLD_S, OLD_S))
    os.utime(tmp_path / "ckpt_1_rank1.pt", (OLD_S + 20, OLD_S + 20))
    assert find(tmp_path, "ckpt_{step}_rank*.pt").found is not None
    (tmp_path / STARTS).write_text(f"{(OLD_S + 10) * 10**9}\n")
    assert ("older than the job's restart") in find(tmp_path, "ckpt_{step}_rank*.pt").passed_over[
        0
    ].why


def save(root, at_s: int, step: int, ranks: int, **more) -> None:
    """One file a rank, as a job writes them at a time."""
    for rank in range(ranks):
        path = root / f"ckpt_{step}_rank{rank}.pt"
        path.write_bytes(torch_save({"step": step, **more}))
        os.utime(path, (OLD_S + at_s, OLD_S + at_s))


def note(root, *starts: tuple[int, int]) -> None:
    """When starts began, and of how many tasks."""
    lines = [f"{(OLD_S + at_s) * 10**9}\n{tasks} tasks\n" for at_s, tasks in starts]
    (root / STARTS).write_text("".join(lines))


def test_the_first_set_needs_a_file_of_each_task_of_the_job(tmp_path):
    note(tmp_path, (0, 4))
    save(tmp_path, 10, step=5, ranks=2)
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert search.verdict == "incomplete"
    assert search.passed_over[0].why == "only 2 of 4 ranks have saved their files"
    save(tmp_path, 10, step=5, ranks=4)
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.step, found.unproven) == (5, "")


def test_interrupted_saves_of_two_starts_do_not_prove_each_other(tmp_path):
    note(tmp_path, (0, 4), (20, 4))
    save(tmp_path, 10, step=5, ranks=2)
    save(tmp_path, 30, step=6, ranks=2)
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).verdict == "incomplete"


def test_a_start_that_saves_again_has_finished_the_save_before(tmp_path):
    """Some programs have fewer ranks save than the job has tasks."""
    note(tmp_path, (0, 4))
    save(tmp_path, 10, step=5, ranks=2)
    save(tmp_path, 20, step=6, ranks=2)
    rows = list_checkpoints(tmp_path)
    assert [(row.step, row.unproven) for row in rows] == [(6, ""), (5, "")]


@pytest.mark.parametrize("more", [{}, {"world_size": 4}])
def test_rank_0_may_save_for_all(tmp_path, more):
    """A program that keeps its newest checkpoint alone has no step before, however long it ran."""
    note(tmp_path, (0, 4))
    save(tmp_path, 10, step=5, ranks=1, **more)
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.step, found.unproven) == (5, "whether a step has more than 1 file")


def test_a_job_that_has_grown_is_held_to_its_new_tasks(tmp_path):
    note(tmp_path, (0, 2), (20, 4))
    save(tmp_path, 10, step=5, ranks=2)
    save(tmp_path, 30, step=6, ranks=2)
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).found.step == 5
    save(tmp_path, 30, step=6, ranks=4)
    assert find_newest_complete_checkpoint_in_tiers(tmp_path).found.step == 6


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_files_say_of_how_many_ranks_they_are(tmp_path, ranks):
    save(tmp_path, 10, step=5, ranks=ranks, world_size=3)
    found = find_newest_complete_checkpoint_in_tiers(tmp_path).found
    assert (found.step, found.unproven) == (5, "") if ranks == 3 else found is None


@pytest.mark.parametrize("name", ["local_rank", "mp_rank_", "node-rank"])
def test_a_rank_within_a_node_or_a_group_is_none_of_the_job(tmp_path, name):
    note(tmp_path, (0, 4))
    write(tmp_path, {f"s5-{name}{n}.pt": torch_save({"w": n}) for n in range(2)})
    found = find(tmp_path, f"s{{step}}-{name}*.pt").found
    assert found.unproven == "whether a step has more than 2 files"


def test_files_that_are_declared_by_name_are_all_that_is_saved(tmp_path):
    note(tmp_path, (0, 4))
    save(tmp_path, 10, step=5, ranks=2)
    found = find(tmp_path, "ckpt_{step}_rank0.pt", "ckpt_{step}_rank1.pt").found
    assert (found.step, found.unproven) == (5, "whether a step has more than 2 files")


def test_a_start_notes_the_tasks_of_the_job(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    run("last", "--export", "--tell", tmp_path)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    run("last", "--export", "--tell", tmp_path)
    monkeypatch.setenv("HPCTL_SPARES", "1")
    run("last", "--export", "--tell", tmp_path)
    assert [start.tasks for start in read_recorded_job_starts(tmp_path)] == [0, 4, 0]


def test_the_files_of_ranks_are_grouped_without_a_declaration(tmp_path):
    """Each of them records the step: none of them is the checkpoint."""
    for step in (10, 20):
        write(tmp_path, {f"ckpt_{step}_rank{r}.pt": torch_save({"step": step}) for r in range(2)})
    (tmp_path / "ckpt_20_rank1.pt").unlink()
    search = find_newest_complete_checkpoint_in_tiers(tmp_path)
    assert (search.found.step, search.found.format) == (10, "declared")
    assert "this is the file of one rank" in verify_checkpoint(tmp_path / "ckpt_10_rank0.pt").why


@pytest.mark.parametrize(
    "name", ["a.pt", "a.bin", "a.npz", "a.npy", "a.pkl", "a.json", "x.safetensors"]
)
def test_a_file_that_is_cut_or_zeroed_is_not_offered(tmp_path, name):
    made = {
        "a.pt": torch_save({"w": 1}),
        "a.bin": torch_save({"w": 1}),
        "a.npz": npz(),
        "a.npy": npy(),
        "a.pkl": pickle.dumps({"w": list(range(100)), "b": b"x" * 500}),
        "a.json": json.dumps({"w": [1.5] * 50}).encode(),
        "x.safetensors": safetensors(),
    }[name]
    path = tmp_path / name
    path.write_bytes(made)
    assert find(tmp_path, "a.*", "x.*").found is None, "each pattern needs a file"
    assert find(tmp_path, "[ax].*").found.path == path
    for damaged in (made[:-1], made[: len(made) // 2], b"", bytes(len(made))):
        path.write_bytes(damaged)
        old(tmp_path)
        assert find(tmp_path, "[ax].*").found is None, (len(damaged), damaged[:8])


def test_a_file_without_a_container_is_looked_at_twice(tmp_path, monkeypatch):
    path = tmp_path / "model_1.raw"
    path.write_bytes(RAW)
    waited = []

    def grow(seconds) -> None:
        waited.append(seconds)
        path.write_bytes(RAW * 2)

    monkeypatch.setattr(contents.time, "sleep", grow)
    search = find(tmp_path, "model_{step}.raw")
    assert search.passed_over[0].why == "model_1.raw is still being written"
    monkeypatch.setattr(contents.time, "sleep", waited.append)
    assert "what is in model_1.raw" in find(tmp_path, "model_{step}.raw").found.unproven
    assert waited == [contents.LOOK_AGAIN_S] * 2
    old(tmp_path)
    assert find(tmp_path, "model_{step}.raw").found is not None
    assert len(waited) == 2, "an old file is not waited for"


def test_a_file_without_a_container_that_is_smaller_than_before_is_cut(tmp_path):
    write(tmp_path, {"m_1.raw": RAW, "m_2.raw": RAW[: len(RAW) // 2]})
    old(tmp_path)
    search = find(tmp_path, "m_{step}.raw")
    assert search.found.step == 1
    assert "but had 3000 bytes one step earlier" in search.passed_over[0].why


def test_a_directory_stands_for_all_files_in_it(tmp_path):
    for step in (1, 2):
        write(tmp_path / f"save-{step}", {"a.pt": torch_save({}), "deep/b.pt": torch_save({})})
    (tmp_path / "save-2/deep/b.pt").unlink()
    search = find(tmp_path, "save-{step}")
    assert (search.found.path, search.found.step) == (tmp_path / "save-1", 1)


def test_links_hidden_and_temporary_files_are_no_part(tmp_path):
    write(tmp_path, {"m_3.pt": torch_save({}), "m_4.pt.tmp": torch_save({}), ".m_5.pt": b"x"})
    (tmp_path / "m_9.pt").symlink_to("m_3.pt")
    os.mkfifo(tmp_path / "m_8.pt")
    rows = list_checkpoints(tmp_path, declared=parse_checkpoint_file_patterns(["*m_{step}.pt*"]))
    assert [row.step for row in rows if isinstance(row, CompleteCheckpoint)] == [3]


def test_the_file_of_another_user_is_refused(tmp_path, monkeypatch):
    from hpctl.checkpoints import declared

    write(tmp_path, {"m_3.pt": torch_save({})})
    monkeypatch.setattr(declared, "find_untrusted_owner", lambda _: 1666)
    assert "belongs to another user, 1666" in find(tmp_path, "m_{step}.pt").passed_over[0].why


@pytest.mark.parametrize(
    "text",
    ["", "/a/{step}.pt", "../x", "a//b", "{job_id}.pt", "{step}{step}", "*a" * 4, "a\n", "[z-a]"],
)
def test_a_text_that_is_no_pattern_is_refused_with_a_hint(text):
    with pytest.raises(HpctlError) as error:
        parse_checkpoint_file_patterns([text])
    assert error.value.hint


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (["model_step_13.pt", "model_step_14.pt"], ("model_step_{step}.pt",)),
        (["weights-21.safetensors"], ("weights-{step}.safetensors",)),
        ([f"ckpt_20_rank{r}.npz" for r in range(3)], ("ckpt_{step}_rank*.npz",)),
        (
            ["epoch3-model.bin", "epoch3-optim.bin"],
            ("epoch{step}-model.bin", "epoch{step}-optim.bin"),
        ),
        (["model.bin"], ("model.bin",)),
        (["it's.bin", "a\n"], ()),
    ],
)
def test_patterns_are_suggested_by_the_names(names, patterns):
    assert suggest_checkpoint_file_patterns(names) == patterns


@pytest.mark.parametrize("pattern", ["ckpt*{step}.bin", "ckpt_{step}*.bin", "*{step}*"])
def test_a_wildcard_takes_no_digit_of_the_step(tmp_path, pattern):
    write(tmp_path, {"ckpt_120.bin": RAW})
    old(tmp_path)
    assert find(tmp_path, pattern).found.step == 120


def test_the_commands_offer_and_take_the_pattern(tmp_path):
    write(tmp_path, {"weights-21.raw": RAW})
    old(tmp_path)
    code, out, err = run("last", "--export", tmp_path)
    assert (code, out) == (1, "none\n")
    assert "submit with --checkpoint-files 'weights-{step}.raw'" in err
    code, out, err = run("last", "--checkpoint-files", "weights-{step}.raw", tmp_path)
    assert (code, out) == (0, f"{tmp_path}/weights-21.raw\n")
    assert "unproven of" in err
    code, out, _ = run("ls", "--json", "--checkpoint-files", "weights-{step}.raw", tmp_path)
    (row,) = json.loads(out)["checkpoints"]
    assert (code, row["complete"], row["step"]) == (0, None, 21)
    assert row["unproven"] == "what is in weights-21.raw"


def test_each_start_looks_for_what_the_job_declares(tmp_path):
    write(tmp_path, {"weights-21.pt": torch_save({"w": 1})})
    environment = {
        "HPCTL_CHECKPOINT_DIR": str(tmp_path),
        "HPCTL_CHECKPOINT_FILES": '["weights-{step}.pt"]',
    }
    places = read_resume_places(environment)
    assert places == CheckpointSearchPlaces(tmp_path, files=("weights-{step}.pt",))
    assert find_resume_point(places).step == 21
    assert find_newest_resume_point(tmp_path, places.files).step == 21
    assert find_newest_resume_point(tmp_path).path is None
    with pytest.raises(HpctlError, match="HPCTL_CHECKPOINT_FILES"):
        read_resume_places({**environment, "HPCTL_CHECKPOINT_FILES": "{"})


def test_explain_says_what_is_unproven(tmp_path):
    write(tmp_path, {"w-21.raw": RAW})
    old(tmp_path)
    job = slurm_job(uid=os.geteuid())

    def explained(*files) -> str:
        registered = JobRegistration(ckpt=str(tmp_path), files=files)
        return describe_newest_checkpoint(JobToExplain(world([]), job, registered, RunPolicy()))

    assert "--checkpoint-files 'w-{step}.raw'" in explained()
    assert "unproven: what is in w-21.raw" in explained("w-{step}.raw")
    assert "no pattern" in explained("../x")


def test_the_first_save_is_reported_once(tmp_path, capsys):
    """Files that nothing recognizes after two looks; a checkpoint when it is there."""
    looks = []

    def ended(_) -> bool:
        looks.append(1)
        if len(looks) == 2:
            write(tmp_path, {"weights-1.raw": RAW})
        if len(looks) == 6:
            write(tmp_path, {"ckpt.pt": torch_save({"iter_num": 5})})
        return len(looks) > 20

    first_save.watch_for_first_checkpoint(tmp_path, (), ended)
    unknown, found, caution = capsys.readouterr().err.splitlines()
    assert "--checkpoint-files 'weights-{step}.raw'" in unknown
    assert unknown.endswith("a restart begins at the beginning")
    assert f"first checkpoint: {tmp_path}/ckpt.pt, step 5, torch-save" in found
    assert "saved over in place" in caution
    assert len(looks) == 6


def test_the_watch_of_the_first_save_ends_with_the_script(tmp_path, capsys):
    first_save.watch_for_first_checkpoint(tmp_path, (), lambda _: True)
    answers = [False, False, True]
    first_save.watch_for_first_checkpoint(tmp_path / "missing", (), lambda _: answers.pop(0))
    assert (answers, capsys.readouterr().err) == ([], "")


def safetensors() -> bytes:
    header = json.dumps({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\1" * 64


def npy() -> bytes:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (16, 2), }".ljust(117) + b"\n"
    return b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + b"\1" * 128


def npz() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("w.npy", npy())
    return made.getvalue()
