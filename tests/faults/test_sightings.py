"""Where a fault was seen: the column `seen` of the fault tables."""

import pkgutil

import msgspec
import pytest

from hpctl.faults import table
from hpctl.faults.catalogue import SHIPPED
from hpctl.faults.sightings import NOT_SEEN, FaultSighting, describe_sightings, parse_sightings
from hpctl.faults.table import ROWS
from hpctl.vocabulary.identity import RuleId


def test_a_cell_names_recordings_threads_and_files() -> None:
    found = parse_sightings("H200, driver 580.159.04; a/b.c#12 (119, 120); d-e/f:x/y_z.log")
    assert found == (
        FaultSighting("H200, driver 580.159.04"),
        FaultSighting("a/b.c#12 (119, 120)", "https://github.com/a/b.c/issues/12"),
        FaultSighting("d-e/f:x/y_z.log", "https://github.com/d-e/f/blob/HEAD/x/y_z.log"),
    )
    assert [one.is_recorded_by_hpctl for one in found] == [True, False, False]


def test_a_manual_is_no_sighting() -> None:
    assert parse_sightings("manual") == ()
    assert describe_sightings(()) == NOT_SEEN


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "yes", "manual; a/b#1", "a/b#0", "a/b", "#12", "a/b#1,c/d#2", "a/b#1;c/d#2",
        "a/b: x", "H100, driver 1", "https://github.com/a/b/issues/1", "a/b#1 (", "a/b#1\n",
    ],
)  # fmt: skip
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="where a fault was seen"):
        parse_sightings(text)


def test_every_row_says_where_it_was_seen_and_explain_repeats_it() -> None:
    for rule, row in ROWS.items():
        assert SHIPPED[rule].source.endswith(describe_sightings(row.sightings)), rule
    assert SHIPPED[RuleId("xid-79")].source.endswith(
        "seen: NVIDIA/nvidia-docker#1553; NVIDIA/NVSentinel#155"
    )
    assert SHIPPED[RuleId("xid-151")].source.endswith(NOT_SEEN)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("| row remapping has failed on a GPU | manual |", "| failed | yes |", ValueError),
        ("| row remapping has failed on a GPU | manual |", "| failed | |", ValueError),
        ("| meaning | seen | nvidia |", "| meaning | see | nvidia |", msgspec.ValidationError),
    ],
)
def test_a_table_that_does_not_say_where_is_refused(
    monkeypatch: pytest.MonkeyPatch, old: str, new: str, error: type[Exception]
) -> None:
    read = pkgutil.get_data

    def read_changed(package: str, name: str) -> bytes | None:
        data = read(package, name)
        return data.replace(old.encode(), new.encode()) if data and name == "gpu.md" else data

    table._read_tables()
    monkeypatch.setattr(pkgutil, "get_data", read_changed)
    with pytest.raises(error):
        table._read_tables()


def test_a_row_without_the_column_is_refused() -> None:
    row = {"check": "gpu.x", "code": "y", "treatment": "I", "meaning": "z"}
    with pytest.raises(msgspec.ValidationError, match="seen"):
        msgspec.convert(row, table.FaultRow)
    assert msgspec.convert({**row, "seen": "manual"}, table.FaultRow).sightings == ()
