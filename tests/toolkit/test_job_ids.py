"""Ids as users write them: every form, and nothing else."""

import pytest

from hpctl.toolkit.job_ids import (
    UserJobId,
    find_task_ranges,
    format_component,
    format_task,
    parse_job_id,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("12", UserJobId(12)),
        ("12_3", UserJobId(12, task=3)),
        ("12_0", UserJobId(12, task=0)),
        ("12+1", UserJobId(12, component=1)),
        ("12+0", UserJobId(12, component=0)),
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
    assert format_task(12, "3") == "12_3"
    assert format_task(12, "1-3,9%2") == "12_[1-3,9%2]"
    assert format_component(12, 1) == "12+1"


def test_what_is_written_is_read():
    assert parse_job_id(format_task(7, "42")) == UserJobId(7, task=42)
    assert parse_job_id(format_component(7, 42)) == UserJobId(7, component=42)


def test_a_list_of_tasks_that_is_cut_off_names_those_that_it_has():
    tasks = [task for tasks in find_task_ranges("1-3,9,20-30:5,...%4") for task in tasks]
    assert tasks == [1, 2, 3, 9, 20, 25, 30]
    assert list(find_task_ranges("")) == []
