"""A minute of the soak (`make soak` is the long one): nothing is lost, nothing runs twice."""

import pytest

from tests.soak.run import Plan, soak

pytestmark = [pytest.mark.integration, pytest.mark.slurm, pytest.mark.timeout(600)]


def test_a_minute_of_faults_loses_no_job(capsys) -> None:
    output: list[str] = []
    account = soak(Plan(1.0, 7, 200, (4.0, 9.0), named_s=120), output.append)
    with capsys.disabled():
        print("", *account.lines(), sep="\n")
    assert not account.twice
    assert not account.other_weights
    # Other tests run beside it: the long soak holds `status` to a minute, this one to two.
    assert not account.status.misses
    assert sum(row.named for row in account.status.rows) >= 2, account.status
    assert {job.shape.name for job in account.jobs} == {"requeued", "supervised", "alone"}
    assert sum(account.struck.values()) >= 3, output
