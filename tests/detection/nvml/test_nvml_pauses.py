"""Which time counts against the driver, and how a frozen cgroup is recognized."""

from pathlib import Path

import pytest

from hpctl.detection.nvml.pauses import (
    FROZEN,
    STARVED,
    STOPPED,
    NvmlChildPauseTracker,
    ThreadSample,
    is_process_frozen,
    sample_thread_state,
)

LONGEST_S = 5.0


def thread(halted: str = "", *, runnable: bool = False, cpu_s: float = 0.0) -> ThreadSample:
    return ThreadSample(7, halted, runnable, cpu_s)


def looks(*samples: ThreadSample, every_s: float = 2.0) -> tuple[NvmlChildPauseTracker, float]:
    """A call begins at 100 s, and the child is looked at again and again."""
    pauses = NvmlChildPauseTracker(LONGEST_S)
    pauses.calm(100.0)
    now = 100.0
    for seen in samples:
        now += every_s
        pauses.overdue(now, seen)
    return pauses, now


def counted(*samples: ThreadSample, every_s: float = 2.0) -> float:
    pauses, now = looks(*samples, every_s=every_s)
    return pauses.compute_unpaused_s(100.0, now)


def test_a_call_in_the_driver_counts_in_full():
    assert counted(*[thread()] * 10) == 20.0


@pytest.mark.parametrize("halted", [STOPPED, FROZEN])
def test_a_halted_thread_does_not_count_and_is_named(halted):
    pauses, now = looks(*[thread(halted)] * 50)
    assert pauses.compute_unpaused_s(100.0, now) == 0.0
    assert pauses.reason == halted


def test_the_time_on_both_sides_of_a_stop_does_not_count():
    # When between two looks it was stopped, and when it went on, is not known.
    assert counted(thread(), thread(STOPPED), thread(STOPPED), thread(), thread()) == 4.0


def test_after_a_stop_the_driver_has_its_whole_time_again():
    pauses, now = looks(*[thread(STOPPED)] * 20, *[thread()] * 11)
    assert pauses.compute_unpaused_s(100.0, now) == 20.0
    assert pauses.reason == ""


def test_a_pause_of_the_agent_itself_does_not_count():
    pauses, now = looks(thread(), every_s=1000.0)
    assert pauses.compute_unpaused_s(100.0, now) == LONGEST_S
    assert pauses.reason == "the agent itself did not run for 1000 s"


def test_a_runnable_thread_without_processor_time_does_not_count():
    waits = [thread(runnable=True, cpu_s=0.01 * look) for look in range(10)]
    pauses, now = looks(*waits)
    assert pauses.compute_unpaused_s(100.0, now) == 2.0
    assert pauses.reason == STARVED


def test_a_thread_that_spins_in_the_driver_counts():
    spins = [thread(runnable=True, cpu_s=1.9 * look) for look in range(10)]
    assert counted(*spins) == 20.0


def test_only_the_part_of_a_pause_that_lies_in_the_call_is_taken_off():
    pauses, now = looks(*[thread(STOPPED)] * 3, thread(), thread())
    assert pauses.compute_unpaused_s(now - 3.0, now) == 2.0


def test_a_calm_look_forgets_all_pauses():
    pauses, now = looks(*[thread(STOPPED)] * 3)
    pauses.calm(now)
    pauses.overdue(now + 2.0, thread())
    assert pauses.compute_unpaused_s(100.0, now + 2.0) == now + 2.0 - 100.0


V1_MOUNT = "37 31 0:34 / {at} rw,relatime - cgroup cgroup rw,freezer"
V2_MOUNT = "41 31 0:38 / {at} rw,relatime - cgroup2 cgroup2 rw"
V2_CONTAINER = "41 31 0:38 /docker/abc {at} rw,relatime - cgroup2 cgroup2 rw"


def lay_out(root: Path, membership: str, mount: str, file: str = "", text: str = "") -> Path:
    """A /proc with one process, and its cgroup's folder with one file."""
    proc, cgroup = root / "proc", root / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "self").mkdir()
    (proc / "7/cgroup").write_text(f"9:name=systemd:/\n{membership}\n")
    (proc / "self/mountinfo").write_text(
        f"31 23 0:28 / {cgroup} rw - tmpfs tmpfs rw\n{mount.format(at=cgroup)}\n"
    )
    if file:
        (cgroup / file).parent.mkdir(parents=True)
        (cgroup / file).write_text(text)
    return proc


@pytest.mark.parametrize(
    ("membership", "mount", "file", "text", "frozen"),
    [
        ("6:freezer:/a/b", V1_MOUNT, "a/b/freezer.state", "FROZEN\n", True),
        ("6:freezer:/a/b", V1_MOUNT, "a/b/freezer.state", "FREEZING\n", False),
        ("6:freezer:/a/b", V1_MOUNT, "a/b/freezer.state", "THAWED\n", False),
        ("6:cpu,freezer:/a", V1_MOUNT, "a/freezer.state", "FROZEN\n", True),
        ("6:cpu:/a", V1_MOUNT, "a/freezer.state", "FROZEN\n", False),
        ("0::/a/b", V2_MOUNT, "a/b/cgroup.events", "populated 1\nfrozen 1\n", True),
        ("0::/a/b", V2_MOUNT, "a/b/cgroup.events", "populated 1\nfrozen 0\n", False),
        ("0::/docker/abc/c", V2_CONTAINER, "c/cgroup.events", "frozen 1\n", True),
        ("0::/docker/abc", V2_CONTAINER, "cgroup.events", "frozen 1\n", True),
        ("0::/../other", V2_MOUNT, "", "", False),
        ("0::/", V2_MOUNT, "", "", False),
    ],
)
def test_a_frozen_cgroup_of_either_version(tmp_path, membership, mount, file, text, frozen):
    assert is_process_frozen(7, lay_out(tmp_path, membership, mount, file, text)) is frozen


def test_a_process_that_is_gone_is_not_frozen(tmp_path):
    assert is_process_frozen(7, tmp_path) is False
    assert sample_thread_state(7, 7, tmp_path) is None


@pytest.mark.parametrize(
    ("state", "halted"),
    [("T", STOPPED), ("t", STOPPED), ("D", ""), ("S", ""), ("R", ""), ("Z", "")],
)
def test_the_state_letter_of_the_thread_in_the_call(tmp_path, state, halted):
    proc = lay_out(tmp_path, "0::/", V2_MOUNT)
    (proc / "7/task/9").mkdir(parents=True)
    fields = " ".join(["0"] * 10 + ["150", "50"] + ["0"] * 10)
    (proc / "7/task/9/stat").write_text(f"9 (a) T b) {state} {fields}\n")
    seen = sample_thread_state(7, 9, proc)
    assert seen == ThreadSample(9, halted, state == "R", seen.cpu_s)
    assert seen.cpu_s == pytest.approx(2.0)
