"""Any cluster file that the service takes, for property tests; its values are in any_spec.yaml."""

from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

from hpctl.clusters.spec import ClusterSpec, build_cluster_spec
from tests.tables import beside

VALUES = beside(__file__)
_names = st.from_regex(r"\A[a-z](-?[a-z0-9]){0,8}\Z")
_types = st.sampled_from(VALUES["types"])


def _of(values: Mapping[str, list[Any]]) -> dict[str, st.SearchStrategy[Any]]:
    return {key: st.sampled_from(some) for key, some in values.items()}


@st.composite
def _group(draw: st.DrawFn, role: str, *, continuous: bool) -> dict[str, Any]:
    count = 1 if role == "controller" else draw(st.integers(0, 3))
    answer = draw(st.fixed_dictionaries({}, optional=_of(VALUES["group"])))
    answer |= {"count": count, "role": role, "execution_role": "arn:aws:iam::111122223333:role/x"}
    if draw(st.booleans()):
        answer["instance_type"] = draw(_types)
    else:
        answer["instance_types"] = draw(st.lists(_types, min_size=1, max_size=3, unique=True))
    if role == "compute":
        answer["partition"] = draw(_names)
    if continuous and count:
        answer["min_count"] = draw(st.integers(1, count))
    return answer


@st.composite
def specs(draw: st.DrawFn) -> ClusterSpec:
    """A spec that breaks no rule; Slurm configured by the API, or not."""
    always = _of(VALUES["always"])
    answer = draw(st.fixed_dictionaries(always, optional=_of(VALUES["top"])))
    answer |= draw(st.sampled_from(VALUES["style"]))
    roles = ["controller", *draw(st.lists(st.just("login"), max_size=1))]
    roles += draw(st.lists(st.just("compute"), max_size=3))
    continuous = "node_provisioning_mode" in answer
    groups = [draw(_group(role, continuous=continuous)) for role in roles]
    names = draw(st.lists(_names, min_size=len(roles), max_size=len(roles), unique=True))
    answer["name"] = draw(_names)
    answer["instance_groups"] = [{"name": n, **g} for n, g in zip(names, groups, strict=True)]
    answer["vpc"] = draw(st.fixed_dictionaries(_of(VALUES["vpc"])))
    answer["tags"] = draw(st.dictionaries(_names, st.text("abc =@", max_size=5), max_size=3))
    return build_cluster_spec(answer, "the test")
