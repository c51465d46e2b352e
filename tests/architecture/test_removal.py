"""What is left of a module, and of the whole tree, without a feature room."""

import pytest

from tests.architecture.pruning import prune
from tests.architecture.removal import main
from tests.architecture.rooms import ROOMS

COMPOSITION = """
from hpctl.engine import loop
from hpctl.grey import Grey, watch

# Grey alone.
GREY = Grey
# Of all.
FIRST = "a"  # kept as it is
TABLE = {"a": ("hpctl.cli.a:a", "A."), "b": ("hpctl.grey.b:b", "B.")}
LIST = (loop.first, watch)


class Parts:
    first: loop.First
    grey: Grey


class GreyParts:
    grey: Grey


def make_parts(given):
    grey = Grey(given)
    late = grey.later()
    return Parts(first=loop.First(on_cycle=[watch, given]), grey=grey)


def make_grey(parts: Parts) -> GreyParts:
    return GreyParts(grey=parts.grey)


def use(parts: Parts, *, more: GreyParts):
    begin(parts, *LIST, also=more.grey)
    return Daemon(parts.first, servers=(parts.grey,))


def main():
    parts = make_parts(1)
    more = make_grey(parts)
    use(parts, more=more)
"""

LEFT = """
from hpctl.engine import loop
# Of all.
FIRST = "a"  # kept as it is
TABLE = {'a': ('hpctl.cli.a:a', 'A.')}
LIST = (loop.first,)
class Parts:
    first: loop.First
def make_parts(given):
    return Parts(first=loop.First(on_cycle=[given]))
def use(parts: Parts):
    begin(parts, *LIST)
    return Daemon(parts.first, servers=())
def main():
    parts = make_parts(1)
    use(parts)
"""


def test_what_names_a_room_goes_with_what_rests_on_it() -> None:
    assert prune(COMPOSITION, ("hpctl.grey",)).strip() == LEFT.strip()


def test_a_module_that_does_not_name_the_room_stays_as_it_is() -> None:
    assert prune(COMPOSITION, ("hpctl.greyer",)) == COMPOSITION


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("package", ROOMS)
def test_what_is_left_without_a_room_passes_its_checks(package: str) -> None:
    assert main([package, "--tests"]) == 0
