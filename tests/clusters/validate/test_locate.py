"""A place of the request is a place in the file, for every file that there can be."""

import pytest
import yaml
from hypothesis import given, settings

from hpctl.clusters.cluster_file import format_commented_cluster_spec_yaml
from hpctl.clusters.request import make_create_cluster_request
from hpctl.clusters.validate.wanted import (
    SpecLineFinder,
    convert_request_path_to_spec_keys,
    format_spec_key_path,
)
from tests.clusters.any_spec import specs

pytestmark = pytest.mark.integration


def leaves(value, place=()):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*place, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            yield from leaves(inner, (*place, at))
    yield place


def there(data, place: tuple[str | int, ...]) -> bool:
    for part in place:
        if (isinstance(data, dict) and part in data) or (
            isinstance(data, list | tuple) and isinstance(part, int) and part < len(data)
        ):
            data = data[part]
        else:
            return False
    return True


@settings(max_examples=60, deadline=None)
@given(specs())
def test_every_place_leads_to_a_key(spec):
    data = yaml.safe_load(format_commented_cluster_spec_yaml(spec))
    for place in leaves(make_create_cluster_request(spec)):
        keys = convert_request_path_to_spec_keys(place)
        if keys[:1] == ("tags",):
            # The API has a list where the file has a map.
            keys = keys[:1]
        assert there(data, keys) or _elsewhere(data, keys), (place, keys)


def _elsewhere(data, keys: tuple[str | int, ...]) -> bool:
    """What a group leaves out of its network is said by the cluster's."""
    return keys[2:3] in (("subnets",), ("security_groups",)) and "vpc" in data


@pytest.mark.parametrize(
    ("place", "said", "line"),
    [
        (("ClusterName",), "name", 1),
        (("VpcConfig", "Subnets", 1), "vpc.subnets.1", 5),
        (("InstanceGroups", 0, "InstanceCount"), "instance_groups.0.count", 7),
        (("InstanceGroups", 0, "TrainingPlanArn"), "instance_groups.0.training_plan", 6),
        (("InstanceGroups", 0, "OverrideVpcConfig", "Subnets"), "instance_groups.0.subnets", 6),
        (("InstanceGroups", 0, "SlurmConfig", "NodeType"), "instance_groups.0.role", 6),
        (("provisioning_parameters", "fsx_lustre"), "provisioning_parameters.fsx_lustre", None),
        ((), "", None),
    ],
)
def test_a_line_is_that_of_the_key_or_of_the_nearest_above(place, said, line):
    text = "name: a\nvpc:\n  subnets:\n    - x\n    - y\ninstance_groups: [{name: g,\n count: 1}]\n"
    assert format_spec_key_path(place) == said
    assert SpecLineFinder(text).of(place) == line
