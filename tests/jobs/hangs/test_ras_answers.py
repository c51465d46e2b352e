"""The RAS service's answers to values: JSON, and the text of each release."""

import json
from pathlib import Path

import pytest

from hpctl.jobs.hangs.ras_report import (
    Absence,
    CountGroup,
    RasError,
    RasMember,
    read_json,
    read_text,
)
from tests.stubs.ras.job import as_text, job

SAMPLES = Path(__file__).parent / "ras_samples"
DOCUMENTED_JSON = (SAMPLES / "documented.json").read_bytes()
DOCUMENTED_TEXT = (SAMPLES / "documented.txt").read_bytes()


def test_the_documented_json() -> None:
    report = read_json(DOCUMENTED_JSON)
    assert report.nccl_version == "2.29.1"
    (one,) = report.communicators
    assert one.whole
    assert one.name == "0xae94423cfbb2ef4a:0xb7e7187447156001:0xb8242ed28a71381e"
    assert one.counts["AllReduce"] == (
        CountGroup(7, 1, (RasMember(0, "172.16.64.245", 1524344, 0, 3),)),
    )  # fmt: skip
    (missing,) = one.missing
    assert missing.member == RasMember(1, "172.16.64.245", 1524345, 1, 1)
    assert missing.absence is Absence.UNRESPONSIVE


def test_the_documented_text() -> None:
    report = read_text(DOCUMENTED_TEXT)
    assert report.nccl_version == "2.24.3"
    assert report.dead == (RasMember(-1, "172.16.64.213", 3487984, 5),)
    one = report.communicators[0]
    assert (one.name, one.size, one.status) == ("0xcf264af53edbe986", 32, "RUNNING")
    (missing,) = one.missing
    assert missing.member == RasMember(21, "172.16.64.213", 3487984, 5)
    assert missing.absence is Absence.DEAD
    low, high = one.counts["collective"]
    assert (low.count, low.size) == (6649, 5)
    assert low.members[1] == RasMember(2, "172.16.64.210", 483074, 2, 6)
    assert low.members[2] == RasMember(3)
    assert (high, len(report.communicators)) == (CountGroup(6650, 26), 2)


@pytest.mark.parametrize("release", ["2.24.3", "2.26.2", "2.28.3"])
def test_each_releases_text(release: str) -> None:
    state = job(nodes=2, gpus=4, reverse=True)
    one = state.communicators[0]
    one.step(times=5)
    one.step(times=1, but=(6,))
    one.errors = {2: 2, 3: 6, 4: 6}
    state.processes[7].unresponsive = True
    (found,) = read_text(as_text(state, release).encode()).communicators
    low, high = found.counts["collective" if release == "2.24.3" else "AllReduce"]
    assert low == CountGroup(5, 1, (RasMember(6, "10.0.0.2", 2002, 2, 1),))
    assert (high.count, high.size) == (6, 6)
    assert [missing.member.rank for missing in found.missing] == [7]
    assert found.missing[0].member.pid == (None if release == "2.24.3" else 2003)
    assert {(f.member.rank, f.error, f.remote) for f in found.failures} == {
        (2, "system error", False),
        (3, "remote process error", True),
        (4, "remote process error", True),
    }


@pytest.mark.parametrize("upto", ["NCCL", "Job summary", "Communicators", "Errors\n", "Warnings\n"])
def test_a_torn_text_is_an_error(upto: str) -> None:
    state = job()
    state.communicators[0].step(but=(1,))
    whole = as_text(state, "2.26.2")
    with pytest.raises(RasError, match="not whole"):
        read_text(whole.partition(upto)[0].encode())


@pytest.mark.parametrize("cut", [0, 1, 100, -3])
def test_a_torn_json_is_an_error(cut: int) -> None:
    with pytest.raises(RasError, match="cannot be read"):
        read_json(DOCUMENTED_JSON[:cut])


def test_fields_of_a_later_release_are_passed_over() -> None:
    document = json.loads(DOCUMENTED_JSON)
    document["new"] = {"a": [1]}
    document["communicators"][0]["ranks"][0]["collective_counts"]["AllToAll"] = 3
    document["communicators"][0]["ranks"][0]["status"]["extra"] = 1
    report = read_json(json.dumps(document).encode())
    assert report.communicators[0].counts["AllToAll"][0].count == 3
