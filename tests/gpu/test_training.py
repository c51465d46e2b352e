"""What the training parts compute without a GPU: measures, formats, stories, programs that die."""

import os
import pickle
from pathlib import Path
from unittest.mock import Mock

import pytest

from tests.checkpoints.proof.torch_here import need
from tests.gpu import boxes
from tests.gpu.parts import flight_recorder, in_process, ways_to_die
from tests.gpu.recordings import H200, read_json
from tests.gpu.stories import Story
from tests.gpu.training import death_program, slurm_bed
from tests.gpu.training.formats import FORMATS
from tests.gpu.training.measures import (
    find_weights,
    has_loaded_what_was_saved,
    measure_recovery,
    median_ms,
)
from tests.gpu.training.ranks import read_marks
from tests.gpu.training.warm import WarmPrograms

pytestmark = pytest.mark.integration


def mark(what, step, at, **more):
    """Return one line of a run's marks."""
    return {"what": what, "step": step, "at": at, "pid": 1, **more}


RUN = [
    mark("start", 0, 10.0, digest=""),
    mark("step", 4, 11.0, took_s=0.002),
    mark("step", 5, 12.0, took_s=0.004),
    mark("save", 5, 12.1, digest="five", weights="w5"),
    mark("saved", 5, 12.5),
    mark("step", 6, 13.0, took_s=0.009),
]
AGAIN = [
    mark("start", 5, 21.0, digest="five"),
    mark("step", 6, 21.5, took_s=0.003),
    mark("end", 6, 22.0, weights="w6"),
]


def test_a_recovery_is_measured_from_the_fault_to_the_first_new_step():
    found = measure_recovery([*RUN, *AGAIN], 14.0)
    assert (found.fault_step, found.newest_save, found.resumed_step) == (6, 5, 5)
    assert (found.to_start_s, found.to_first_step_s) == (7.0, 7.5)
    assert found.same_process is True
    assert found.is_right


@pytest.mark.parametrize(
    "after",
    [[], AGAIN[:1], [mark("start", 0, 21.0, digest=""), mark("step", 1, 21.5, took_s=0.1)]],
    ids=["not again", "no step", "an older step"],
)
def test_a_run_that_does_not_go_on_from_its_newest_save_is_not_right(after):
    assert not measure_recovery([*RUN, *after], 14.0).is_right


def test_a_save_that_has_not_ended_is_not_the_newest():
    torn = [*RUN[:4], *AGAIN]
    assert measure_recovery(torn, 14.0).newest_save is None


def test_what_was_loaded_is_compared_with_what_was_saved_before():
    assert has_loaded_what_was_saved([*RUN, *AGAIN])
    other = mark("start", 5, 21.0, digest="other")
    assert not has_loaded_what_was_saved([*RUN, other])
    assert not has_loaded_what_was_saved(RUN), "nothing was resumed"
    late = mark("save", 5, 30.0, digest="other", weights="")
    assert not has_loaded_what_was_saved([*RUN, other, late]), "the save came after the start"


def test_weights_are_those_of_a_save_or_of_the_end():
    marks = [*RUN, *AGAIN]
    assert [find_weights(marks, step) for step in (5, 6, 7)] == ["w5", "w6", ""]


def test_a_median_is_of_the_steps_in_a_span_of_time():
    assert median_ms(RUN, 10.0, 12.0) == 3.0
    assert median_ms(RUN, 12.0, 13.0) == 9.0
    assert median_ms(RUN, 14.0, 15.0) is None


def test_a_line_that_is_being_written_is_no_mark(tmp_path):
    (tmp_path / "marks-0.jsonl").write_text('{"what": "step"}\n{"what": "st')
    assert read_marks(tmp_path) == [{"what": "step"}]
    assert read_marks(tmp_path, rank=1) == []


def test_a_story_names_the_checks_that_failed():
    story = Story("hang/skip", "rank 1 is named", figures={"took_s": 0.4})
    story.conclude({"named": True, "in time": True}, "rank 1")
    assert story.held is True
    assert story.line() == (
        "hang/skip: held. Expected: rank 1 is named. Observed: rank 1; took_s 0.4"
    )
    story.conclude({"named": False, "in time": True}, "nobody")
    assert story.held is False
    assert story.line().startswith("hang/skip: DID NOT HOLD. ")
    assert "nobody [not: named]" in story.line()
    story.skip("needs a GPU")
    assert story.line() == "hang/skip: not run: needs a GPU"


def test_a_job_that_has_ended_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_bed, "LOOK_S", 0.01)
    monkeypatch.setattr(slurm_bed.Job, "find_end", lambda job: "FAILED (NonZeroExitCode)")
    bed = slurm_bed.Bed(Mock(left_s=lambda: 100.0), Mock(), has_disks=False)
    job = slurm_bed.Job(bed, 7, tmp_path, 0.0)
    (tmp_path / "log").write_text("the last line")
    with pytest.raises(TimeoutError, match=r"no step 3: FAILED .*the last line"):
        job.wait_for_step(3, limit_s=50.0)
    found = iter([None, None, "late"])
    assert job.wait(lambda: next(found), "mark", 50.0) == "late", "it came just before the end"


def test_a_held_job_has_ended_and_a_requeued_one_has_not(tmp_path, monkeypatch):
    ends = {
        "JobState=RUNNING Reason=None": "",
        "JobState=PENDING Reason=BeginTime": "",
        "JobState=PENDING Reason=JobHeldUser": "PENDING (JobHeldUser)",
        "JobState=FAILED Reason=NonZeroExitCode": "FAILED (NonZeroExitCode)",
        "slurm_load_jobs error": "",
    }
    job = slurm_bed.Job(Mock(), 7, tmp_path, 0.0)
    for shown, end in ends.items():
        monkeypatch.setattr(boxes, "run_in", lambda *_, text=shown: Mock(out=text))
        assert job.find_end() == end


def test_the_ways_to_die_are_those_of_the_recording():
    recorded = read_json("deaths/verdicts.json")
    assert {way.name for way in ways_to_die.WAYS} == set(recorded)
    known = {way.__name__ for way in death_program.WAYS} | {"assert"}
    assert {way.kind for way in ways_to_die.WAYS} <= known
    for way in ways_to_die.WAYS:
        said = recorded[way.name]["said"]["kind"]
        # What was recorded as wrong was an H200's answer to no_gpu, which is a GPU's kind now.
        assert said in way.right or not recorded[way.name]["right"], way


def test_the_restarts_are_those_of_the_recording():
    assert set(in_process.CASES) == set(read_json("in-process/figures.json"))


def test_a_dump_of_the_flight_recorder_is_summarized():
    dumps = {
        rank: flight_recorder.summarize_dump(
            (H200 / f"nccl/nccl_skip3.nccl_trace_rank_{rank}.pickle").read_bytes()
        )
        for rank in range(3)
    }
    last = {rank: dump["last"]["collective_seq_id"] for rank, dump in dumps.items()}
    assert last == {0: 5, 1: 4, 2: 5}, "rank 1 stayed away from collective 5"
    assert {dump["last"]["profiling_name"] for dump in dumps.values()} == {"nccl:all_reduce"}


def test_a_dump_that_was_cut_off_is_an_error_and_no_exception():
    assert "error" in flight_recorder.summarize_dump(pickle.dumps({"entries": []})[:-3])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_what_it_has_written(name, tmp_path):
    torch = need("torch")
    values = {part: {"a": torch.randn(300)} for part in ("weights", "momentum")}
    state = {"step": 7, **values, "ballast": {"b": torch.ones(8)}}
    FORMATS[name].save(state, tmp_path, 7, 0)
    (path,) = tmp_path.iterdir()
    loaded = FORMATS[name].load(path, state, torch.device("cpu"))
    assert int(loaded["step"]) == 7
    for part in ("weights", "momentum", "ballast"):
        for key, value in state[part].items():
            assert torch.equal(loaded[part][key], value)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


PROGRAM = """
import os, signal, sys
def fail():
    raise ValueError(os.environ["WORDS"])
if sys.argv[1] == "raise":
    fail()
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(int(sys.argv[1]))
"""


def test_a_warm_program_ends_and_prints_as_any_other(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setenv("PATH", os.environ["PATH"])
    with WarmPrograms({}, preloaded=()) as programs:
        ways = {
            word: programs.start(program, [word], word, tmp_path, {"WORDS": "gone"})
            for word in ("raise", "kill", "0", "3")
        }
        codes = {word: way.wait(30.0) for word, way in ways.items()}
    assert codes == {"raise": 1, "kill": -9, "0": 0, "3": 3}
    lines = ways["raise"].err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1] == f'  File "{program}", line 6, in <module>'
    assert lines[-1] == "ValueError: gone"
    assert "warm.py" not in ways["raise"].err
    assert Path(ways["0"].err_file).read_text() == ""
