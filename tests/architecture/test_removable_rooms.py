"""A feature room is removed by deleting it and its lines in the lists: nothing else names it."""

import pytest

from tests.architecture.rooms import ROOMS, find_importers, find_names
from tests.architecture.source import ROOT


@pytest.mark.parametrize("package", ROOMS)
def test_only_the_lists_import_a_feature_room(package: str) -> None:
    room = ROOMS[package]
    may = {*room.listed, *room.handed.values(), *room.whole}
    unlisted = [
        str(path)
        for under in ("hpctl", "docgen", "lifecycle_scripts")
        for path in find_importers(package, under)
        if str(path) not in may and not any(path.is_relative_to(place) for place in room.bound)
    ]
    assert unlisted == []


@pytest.mark.parametrize("package", ROOMS)
def test_only_the_lists_name_a_module_of_a_feature_room(package: str) -> None:
    room = ROOMS[package]
    may = {*room.listed, *room.handed.values(), *room.whole, *room.by_name}
    unlisted = [
        str(path)
        for path in find_names(package, "hpctl")
        if str(path) not in may and not any(path.is_relative_to(place) for place in room.bound)
    ]
    assert unlisted == []


@pytest.mark.parametrize("package", ROOMS)
def test_no_line_outlives_its_reason(package: str) -> None:
    room = ROOMS[package]
    naming = {
        str(path)
        for under in ("hpctl", "docgen")
        for path in (*find_importers(package, under), *find_names(package, under))
    }
    assert {*room.listed, *room.handed.values(), *room.by_name} <= naming
    assert all((ROOT / place).exists() for place in room.bound)
    assert all((ROOT / path).is_file() for path in room.whole)
