"""The cards, each looked at once for a file's tests."""

from xml.etree import ElementTree

import pytest

from tests.detection.nvml.contract.beds import (
    REAL,
    RECORDED,
    Bed,
    Looks,
    has_real_card,
    look,
    make_bed,
)


def _cards() -> list[object]:
    real = [pytest.param(REAL, marks=pytest.mark.gpu)] if has_real_card() else []
    return [*RECORDED, *real]


@pytest.fixture(scope="module", params=_cards())
def bed(request, tmp_path_factory) -> Bed:
    return make_bed(request.param, tmp_path_factory.mktemp("card"))


@pytest.fixture(scope="module")
def looks(bed: Bed) -> Looks:
    return look(bed)


@pytest.fixture(scope="module")
def trace(bed: Bed) -> dict:
    return bed.trace()


@pytest.fixture(scope="module")
def elements(looks: Looks) -> list[ElementTree.Element]:
    """What nvidia-smi says of each card, in its order."""
    return ElementTree.fromstring(looks.xml).findall("gpu")
