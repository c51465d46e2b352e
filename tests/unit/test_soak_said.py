"""The soak's judge: which answers of `status` it lets pass, and which are a miss."""

import pytest

from tests.soak.said import Answer, Row, Watched, _judge

NODE = "ip-10-1-0-2"


def answers(*codes: int, named_from: int = 0, named_to: int = 99) -> list[Answer]:
    """One a second; those of the named seconds name the node."""
    line = (f"{NODE}: GPU fell off the bus: hpctl explain n-1",)
    return [
        Answer(n, n + 0.5, code, line if named_from <= n < named_to else ("ip-10-1-0-21: hot",))
        for n, code in enumerate(codes)
    ]


def judged(
    told: list[Answer], *, last_open: float, ended: bool = True, latent: bool = False
) -> tuple[Row, list[str]]:
    row = Row("xid-79")
    fault = Watched("xid-79", NODE, 0.0, lambda _: True, "a fault", last_open, ended, latent)
    return row, _judge(fault, row, told)


def test_a_fault_that_is_named_until_it_is_over_passes() -> None:
    row, misses = judged(answers(*[1] * 20, named_from=3, named_to=15), last_open=15)
    assert misses == []
    assert (row.named, row.longest_s, row.asked, row.silent) == (1, 3.5, 12, 0)


@pytest.mark.parametrize(
    ("told", "miss"),
    [
        (answers(*[1] * 90, named_from=65), "named after 66 s"),
        (answers(*[1] * 90, named_from=99), "never named in 80 s"),
        (answers(*[1] * 90, named_from=2, named_to=40), "at 40 s status said 1"),
        (answers(*[1] * 30, *[0] * 60), "at 30 s status said 0"),
    ],
    ids=["late", "never", "not to its end", "exit code 0 while it is open"],
)
def test_what_is_not_named_in_time_or_not_to_its_end_is_a_miss(
    told: list[Answer], miss: str
) -> None:
    _, (said,) = judged(told, last_open=80)
    assert miss in said


def test_what_is_over_before_anybody_names_it_is_no_miss() -> None:
    row, misses = judged(answers(*[0] * 20, named_from=99), last_open=9)
    assert misses == []
    assert (row.named, row.sooner, row.unnamed_s) == (0, 1, 9)


def test_what_nobody_can_see_at_first_may_be_named_late_but_not_too_late() -> None:
    """Named for something else in its first seconds, and again when somebody misses it."""
    early, none = answers(*[1] * 5), answers(*[0] * 60, named_from=99)[5:]
    for late, missed in ((40, False), (70, True)):
        again = answers(*[1] * 90, named_from=late)[late:]
        told = [*early, *answers(*[0] * late, named_from=99)[5:], *again]
        row, misses = judged(told, last_open=80, latent=True)
        assert (row.longest_s > late, bool(misses)) == (True, missed)
    assert judged([*early, *none], last_open=59, latent=True)[0].sooner == 1


def test_who_cannot_tell_is_not_silent() -> None:
    told = answers(1, 1, 3, 3, 1, 1, named_to=2)
    told[4:] = answers(*[1] * 6)[4:]
    assert judged(told, last_open=6)[1] == []
