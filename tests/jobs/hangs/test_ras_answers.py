"""Reading the RAS service's JSON."""

import json
from pathlib import Path

import pytest

from hpctl.jobs.hangs.ras_report import (
    OperationCountGroup,
    RankAbsenceReason,
    RasCommunicatorRank,
    RasQueryError,
    parse_ras_report,
)

SAMPLES = Path(__file__).parent / "ras_samples"
DOCUMENTED_JSON = (SAMPLES / "documented.json").read_bytes()


def test_the_documented_json() -> None:
    report = parse_ras_report(DOCUMENTED_JSON)
    assert report.nccl_version == "2.29.1"
    (one,) = report.communicators
    assert one.name == "0xae94423cfbb2ef4a:0xb7e7187447156001:0xb8242ed28a71381e"
    assert one.counts["AllReduce"] == (
        OperationCountGroup(7, (RasCommunicatorRank(0, "172.16.64.245", 1524344, 0, 3),)),
    )  # fmt: skip
    (missing,) = one.missing
    assert missing.member == RasCommunicatorRank(1, "172.16.64.245", 1524345, 1, 1)
    assert missing.absence is RankAbsenceReason.UNRESPONSIVE


@pytest.mark.parametrize("cut", [0, 1, 100, -3])
def test_a_torn_json_is_an_error(cut: int) -> None:
    with pytest.raises(RasQueryError, match="invalid JSON"):
        parse_ras_report(DOCUMENTED_JSON[:cut])


def test_fields_of_a_later_release_are_passed_over() -> None:
    document = json.loads(DOCUMENTED_JSON)
    document["new"] = {"a": [1]}
    document["communicators"][0]["ranks"][0]["collective_counts"]["AllToAll"] = 3
    document["communicators"][0]["ranks"][0]["status"]["extra"] = 1
    report = parse_ras_report(json.dumps(document).encode())
    assert report.communicators[0].counts["AllToAll"][0].count == 3
