"""How long saves, phases and starts explain a silence, on literals."""

from hpctl.jobs.progress.notes import Note
from hpctl.jobs.progress.run_progress import RunProgress
from tests.unit.progress_said import BEGAN, POLICY, book, hang, run, said


def test_a_save_has_a_bound_of_its_own() -> None:
    b = book()
    last = run(b, 50, 1.0)
    b.add(said(0, saving=True), last + 1)
    assert "no end of a save" in hang(b, last + 602, none_at=last + 600).why


def test_long_saves_stretch_the_bound_and_outlive_a_restart() -> None:
    b = book()
    last = run(b, 50, 1.0)
    b.add(said(0, checkpoint="/c/50", step=50, seconds=400.0), last + 1)
    renewed = RunProgress(POLICY, 5000.0, BEGAN, pace=b.pace.renewed())
    last = run(renewed, 50, 1.0, at=5000.0)
    renewed.add(said(0, saving=True), last)
    hang(renewed, last + 1201, none_at=last + 1190)


def test_steps_go_on_under_an_asynchronous_save() -> None:
    b = book()
    last = run(b, 50, 1.0)
    b.add(said(0, saving=True), last)
    last = run(b, 1000, 1.0, at=last, start=51)
    hang(b, last + 62)


def test_after_a_save_steps_are_awaited_again() -> None:
    b = book()
    last = run(b, 50, 1.0)
    b.add(said(0, saving=True), last)
    b.add(said(0, saving=False), last + 300)
    hang(b, last + 361, none_at=last + 359)


def test_a_phase_without_steps_gets_what_its_past_explains() -> None:
    b = book()
    last = run(b, 50, 1.0)
    b.add(said(0, phase="eval"), last)
    assert b.trouble(last + 1700) is None  # It was never seen to end: the start's bound.
    b.add(said(0, phase="train"), last + 100)
    last = run(b, 50, 1.0, at=last + 100, start=51)
    b.add(said(0, phase="eval"), last)
    hang(b, last + 301, none_at=last + 299)


def test_an_evaluation_between_steps_is_no_pause_of_theirs() -> None:
    b = book()
    last = run(b, 50, 1.0)
    b.add(said(0, phase="eval"), last)
    b.add(said(0, phase="train"), last + 300)
    last = run(b, 50, 1.0, at=last + 300, start=51)
    hang(b, last + 61)


def test_phases_within_each_step_do_not_loosen_the_bound() -> None:
    b, at = book(), 1000.0
    for step in range(1, 50):
        for phase in ("data", "forward", "backward"):
            at += 0.3
            b.add(said(0, phase=phase), at)
        at += 0.1
        b.add(said(0, step), at)
    b.add(said(0, phase="data"), at)
    hang(b, at + 61)


def test_a_second_start_is_judged_by_the_first() -> None:
    first = book()
    first.add(said(0, 1), 1000.0 + 90)
    run(first, 20, 2.0, at=1090.0, start=2)
    second = RunProgress(POLICY, 5000.0, BEGAN, pace=first.pace.renewed())
    hang(second, 5000.0 + 601, none_at=5000.0 + 599)
    second = RunProgress(POLICY, 5000.0, BEGAN, pace=first.pace.renewed())
    second.add(said(0, 10), 5050.0)
    hang(second, 5050.0 + 61, none_at=5050.0 + 59)


def test_slow_first_steps_may_be_slow_again() -> None:
    first = book()
    first.add(said(0, 1), 1001.0)
    first.add(said(0, 2), 1101.0)
    run(first, 20, 2.0, at=1101.0, start=3)
    assert first.trouble(1141.0 + 61) is not None
    second = RunProgress(POLICY, 5000.0, BEGAN, pace=first.pace.renewed())
    second.add(said(0, 10), 5050.0)
    hang(second, 5050.0 + 301, none_at=5050.0 + 299)


def test_ranks_started_anew_inside_the_step_get_a_starts_time() -> None:
    b = book()
    last = run(b, 50, 1.0, ranks=2)
    b.add(Note(restart=True), last + 20)
    assert b.ranks == {}
    assert b.trouble(last + 20 + 599) is None
    again = run(b, 50, 1.0, ranks=2, at=last + 100, start=40)
    assert b.step == 89
    hang(b, again + 61, none_at=again + 59)
