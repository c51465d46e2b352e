"""GPU checks of memory: remapped rows, uncorrectable and corrected errors, retired pages."""

from __future__ import annotations

import pytest

from hpctl.agent.nvml.snapshot import Ecc, Event, Remap, Snapshot
from tests.sweeps import but, codes, gpus, judged, pci

SOUND = Remap(0, 0, False, False, 640, 0, 0, 0, 0)


def remapped(remap: Remap) -> Snapshot:
    return Snapshot(100.0, gpus=but(2, gpus(remap=SOUND), remap=remap))


@pytest.mark.parametrize(
    ("remap", "found"),
    [
        (Remap(failed=True), {pci(2): "failure"}),
        (Remap(pending=True), {pci(2): "pending"}),
        (Remap(uncorrectable=512), {pci(2): "uncorrectable"}),
        (Remap(uncorrectable=511), {}),
        (Remap(correctable=5000), {}),
        (Remap(banks_max=600, banks_high=30, banks_partial=9), {}),
        (Remap(banks_low=1), {pci(2): "bank-low"}),
        (Remap(banks_none=1), {pci(2): "bank-none"}),
        (Remap(), {}),
    ],
)
def test_row_remapping(remap, found):
    assert codes("gpu.remap", remapped(remap)) == found


def test_a_failed_and_a_pending_remapping_are_two_things():
    said = judged("gpu.remap", remapped(Remap(0, 3, pending=True, failed=True)))
    assert [o.code for o in said] == ["failure", "pending"]


# --- uncorrectable ----------------------------------------------------------------------------


def ecc(at: float, count: int | None, action: int | None = None, *events: Event) -> Snapshot:
    among = gpus(recovery_action=action, ecc=Ecc(volatile_uncorrected=0))
    bad = but(1, among, ecc=Ecc(volatile_uncorrected=count))
    return Snapshot(at, gpus=bad, events=events)


def test_a_new_uncorrectable_error():
    assert codes("gpu.ecc", ecc(105, 3), ecc(100, 2)) == {pci(1): "uncorrectable"}


@pytest.mark.parametrize(("now", "then"), [(2, 2), (0, 2), (None, 2), (2, None), (None, None)])
def test_an_old_count_a_reset_counter_and_an_unknown_one_are_no_evidence(now, then):
    assert codes("gpu.ecc", ecc(105, now), ecc(100, then)) == {}


def test_what_was_there_when_the_agent_started_is_no_news():
    assert codes("gpu.ecc", ecc(100, 7)) == {}


@pytest.mark.parametrize(
    ("action", "code"),
    [(0, "contained"), (1, "uncorrectable"), (4, "uncorrectable"), (None, "uncorrectable")],
)
def test_the_driver_says_whether_it_was_contained(action, code):
    assert codes("gpu.ecc", ecc(105, 1, action), ecc(100, 0, 0)) == {pci(1): code}


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (Event(103, pci(1), 0x8, 94), "contained"),
        (Event(91, pci(1), 0x8, 94), "contained"),
        (Event(103, pci(1), 0x1000), "contained"),
        (Event(89, pci(1), 0x8, 94), "uncorrectable"),
        (Event(103, pci(2), 0x8, 94), "uncorrectable"),
        (Event(103, pci(1), 0x8, 95), "uncorrectable"),
        (Event(103, pci(1), 0x2000), "uncorrectable"),
    ],
)
def test_an_older_driver_says_it_by_an_event(event, code):
    assert codes("gpu.ecc", ecc(105, 1, None, event), ecc(100, 0)) == {pci(1): code}


@pytest.mark.parametrize(("flag", "found"), [(True, "sram-threshold"), (False, ""), (None, "")])
def test_the_sram_threshold_flag(flag, found):
    sram = Ecc(volatile_uncorrected=0, sram_threshold_exceeded=flag)
    seen = Snapshot(100.0, gpus=but(0, gpus(), ecc=sram))
    assert codes("gpu.ecc", seen) == ({pci(0): found} if found else {})


# --- corrected --------------------------------------------------------------------------------


def corrected(at: float, count: int | None) -> Snapshot:
    return Snapshot(at, gpus=but(4, gpus(), ecc=Ecc(volatile_corrected=count)))


@pytest.mark.parametrize(
    ("grown", "found"), [(30_000, {}), (30_001, {pci(4): "storm"}), (531_000, {pci(4): "storm"})]
)
def test_only_a_rate_of_corrected_errors_is_worth_a_word(grown, found):
    many = 50_000_000
    assert codes("gpu.ecc.corrected", corrected(130, many + grown), corrected(100, many)) == found


@pytest.mark.parametrize(("now", "then"), [(5, 90_000_000), (None, 0), (90_000_000, None)])
def test_corrected_counters_that_go_back_or_are_missing(now, then):
    assert codes("gpu.ecc.corrected", corrected(130, now), corrected(100, then)) == {}


def test_no_rate_without_time():
    assert codes("gpu.ecc.corrected", corrected(100, 90_000_000), corrected(100, 0)) == {}
    assert codes("gpu.ecc.corrected", corrected(100, 90_000_000)) == {}


# --- retired pages ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pages", "found"),
    [
        (Ecc(retired_sbe=40, retired_dbe=23), {pci(0): "pages"}),
        (Ecc(retired_sbe=40, retired_dbe=22), {}),
        (Ecc(retired_dbe=63), {pci(0): "pages"}),
        (Ecc(retired_sbe=1, retired_dbe=0, retired_pending=True), {pci(0): "pending"}),
        (Ecc(retired_sbe=1, retired_dbe=0, retired_pending=False), {}),
        (Ecc(), {}),
    ],
)
def test_retired_pages(pages, found):
    assert codes("gpu.retired", Snapshot(100.0, gpus=but(0, gpus(), ecc=pages))) == found
