"""Memory: how much there is, how much is left, and its errors."""

import pytest

from hpctl.agent.checks import check_host_memory
from hpctl.agent.checks.check_host_memory import Counts, Sample
from hpctl.core.model import Verdict
from tests.unit.host import limits, machine, said

TIB = 1024 * 1024


def judged(seen, before=None):
    return said(check_host_memory.judge_memory(seen, before, limits("host.memory")))


def sample(at=0.0, total=2 * TIB, available=TIB, nominal=None, corrected=None):
    errors = () if corrected is None else (Counts("mc0", 0, corrected),)
    return Sample(at, total, available, nominal, errors)


def edac(uncorrected="0", corrected="0", controller="mc0"):
    folder = f"{check_host_memory.FOLDER}/{controller}"
    return {f"{folder}/ue_count": uncorrected, f"{folder}/ce_count": corrected}


@pytest.mark.parametrize(
    ("seen", "codes"),
    [
        (sample(nominal=2 * TIB), []),
        (sample(total=0.9 * 2 * TIB, nominal=2 * TIB), []),
        (sample(total=0.899 * 2 * TIB, nominal=2 * TIB), ["short"]),
        (sample(total=1, nominal=None), []),
        (sample(available=100), []),
        (sample(available=99.9), ["low"]),
    ],
)
def test_limits(seen, codes):
    assert [code for code, _, _ in judged(seen)] == codes


@pytest.mark.parametrize(
    ("before", "after", "codes"),
    [(0, 9, []), (0, 10, ["ce-rate"]), (5000, 5000, []), (5000, 0, []), (None, 10**6, [])],
)
def test_corrected_errors_count_by_their_rate(before, after, codes):
    found = judged(sample(at=60, corrected=after), sample(at=0, corrected=before))
    assert [code for code, _, _ in found] == codes


@pytest.mark.parametrize("name", ["p5.48xlarge", "ml.p5.48xlarge"])
def test_the_instance_type_says_how_much_there_should_be(tmp_path, name):
    files = {"/proc/meminfo": "MemTotal:  1048576 kB\nMemFree: 1 kB\nMemAvailable:  524288 kB\n"}
    seen = check_host_memory.gather_memory(
        machine(tmp_path, {**files, **edac("0", "7")}, instance_type=name)
    )
    assert seen == Sample(0.0, 1024.0, 512.0, 2048 * 1024.0, (Counts("mc0", 0, 7),), False)
    assert judged(seen) == [("short", "", Verdict.FAIL), ("leftovers", "", Verdict.WARN)]


@pytest.mark.parametrize(("count", "expected"), [("1", [("ue", "mc1", Verdict.FAIL)]), ("0", [])])
def test_uncorrected_errors(tmp_path, count, expected):
    made = machine(tmp_path, {**edac("0", "99999"), **edac(count, controller="mc1")})
    seen = check_host_memory.gather_edac(made)
    assert said(check_host_memory.judge_edac(seen, None, limits("host.edac"))) == expected


@pytest.mark.parametrize(
    ("available", "jobs", "codes"),
    [(0.7, False, ["leftovers"]), (0.71, False, []), (0.1, True, []), (0.1, None, [])],
)
def test_memory_that_is_in_use_while_no_job_runs(available, jobs, codes):
    seen = Sample(0.0, TIB, TIB * available, None, (), jobs)
    assert [code for code, _, _ in judged(seen)] == codes


@pytest.mark.parametrize(("comm", "jobs"), [("slurmstepd", True), ("sshd", False)])
def test_a_job_is_looked_for_only_where_much_is_in_use(tmp_path, comm, jobs):
    stat = f"77 ({comm}) S 1 77 77 0 -1 0 " + "0 " * 40
    full = machine(tmp_path, {
        "/proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 100 kB", "/proc/77/stat": stat,
    })  # fmt: skip
    assert check_host_memory.gather_memory(full).jobs is jobs
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 900 kB\n")
    assert check_host_memory.gather_memory(full).jobs is None
