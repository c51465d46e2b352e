"""Ids as users write them: every form, and nothing else."""

import pytest

from hpctl.toolkit.job_ids import (
    ParsedJobId,
    format_array_task_id,
    format_het_component_id,
    parse_array_task_ranges,
    parse_job_id,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", ParsedJobId(12)),
        ("12_3", ParsedJobId(12, task=3)),
        ("12_0", ParsedJobId(12, task=0)),
        ("12+1", ParsedJobId(12, component=1)),
        ("12+0", ParsedJobId(12, component=0)),
        *(
            (text, None)
            for text in ("", "12_", "+1", "12_3_4", "12+1_2", "12 ", "-3", "n12", "\u0661")
        ),
        ("12_[1-3]", None),
        ("12345678901", None),
    ],
)
def test_an_id_is_read_whole_or_not_at_all(text, expected):
    assert parse_job_id(text) == expected


def test_an_id_is_written_as_squeue_writes_it():
    assert format_array_task_id(12, "3") == "12_3"
    assert format_array_task_id(12, "1-3,9%2") == "12_[1-3,9%2]"
    assert format_het_component_id(12, 1) == "12+1"


def test_what_is_written_is_read():
    assert parse_job_id(format_array_task_id(7, "42")) == ParsedJobId(7, task=42)
    assert parse_job_id(format_het_component_id(7, 42)) == ParsedJobId(7, component=42)


def test_a_list_of_tasks_that_is_cut_off_names_those_that_it_has():
    tasks = [task for tasks in parse_array_task_ranges("1-3,9,20-30:5,...%4") for task in tasks]
    assert tasks == [1, 2, 3, 9, 20, 25, 30]
    assert list(parse_array_task_ranges("")) == []
