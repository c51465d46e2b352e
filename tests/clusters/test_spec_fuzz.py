"""A file with anything anywhere: a spec that botocore would send, or a list of problems."""

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hpctl.clusters.request import make_create_cluster_request
from hpctl.clusters.spec import ClusterSpec, ClusterSpecError, parse_cluster_spec_yaml
from tests.clusters.api_model import FILES, complaints
from tests.tables import table

pytestmark = pytest.mark.integration

SAMPLES = [table(path) for path in sorted(FILES.glob("*.yaml"))]
_scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 10**6)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
    | st.sampled_from(["controller", "login", "compute", "Continuous", "None", "ml.p5.48xlarge"])
    | st.dates()
)
_anything = st.recursive(
    _scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


def places(data, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something stands in a file, at any depth."""
    items: list[Any] = []
    if isinstance(data, dict):
        items = list(data.items())
    elif isinstance(data, list):
        items = list(enumerate(data))
    found = [(*prefix, key) for key, _ in items]
    return found + [deep for key, one in items for deep in places(one, (*prefix, key))]


def holder_of(data, place: tuple[Any, ...]):
    for part in place[:-1]:
        data = data[part]
    return data


@st.composite
def damaged(draw: st.DrawFn) -> str:
    """A sample in which up to three things are replaced, removed or added."""
    data = copy.deepcopy(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from([p for p in places(data) if "raw" not in p]))
        holder = holder_of(data, place)
        what = draw(st.sampled_from(["replace", "remove", "add"]))
        if what == "remove":
            del holder[place[-1]]
        elif what == "add" and isinstance(holder, dict):
            holder[draw(st.text(max_size=8))] = draw(_anything)
        else:
            holder[place[-1]] = draw(_anything)
        if not data:
            break
    return str(yaml.safe_dump(data, allow_unicode=True))


def parsed(text: str) -> ClusterSpec | None:
    """The spec, or None where there are problems, each in a line."""
    problems: tuple[str, ...] = ()
    try:
        return parse_cluster_spec_yaml(text)
    except ClusterSpecError as error:
        problems = error.problems
    assert problems
    assert all(problem.isprintable() for problem in problems)
    return None


@settings(max_examples=60, deadline=None)
@given(damaged())
def test_a_damaged_file_is_a_spec_or_a_list_of_problems(text: str) -> None:
    spec = parsed(text)
    if spec is not None and not any([spec.raw, *(group.raw for group in spec.groups)]):
        assert complaints(make_create_cluster_request(spec)) == ""


@settings(max_examples=40, deadline=None)
@given(_anything | st.dictionaries(st.sampled_from(list(SAMPLES[1])), _anything))
def test_anything_is_a_spec_or_a_list_of_problems(data) -> None:
    parsed(str(yaml.safe_dump(data, allow_unicode=True)))
