"""The service's model held against requests: what it refuses, and where."""

import pytest

from hpctl.sagemaker.aws import SageMakerApiModel
from tests.sagemaker.contract.beds import cluster

MODEL = SageMakerApiModel()


def changed(**group):
    request = cluster()
    request["InstanceGroups"][1] |= group
    return request


@pytest.mark.parametrize(
    ("group", "place", "words"),
    [
        ({"InstanceCount": 6759}, ("InstanceCount",), "not within 0 to 6758"),
        ({"InstanceCount": "4"}, ("InstanceCount",), "must be a whole number, not str"),
        ({"InstanceCount": True}, ("InstanceCount",), "must be a whole number, not bool"),
        ({"InstanceGroupName": "a_b"}, ("InstanceGroupName",), "does not match"),
        ({"InstanceGroupName": "a" * 64}, ("InstanceGroupName",), "64 characters, not 1 to 63"),
        ({"InstanceTyp": "x"}, ("InstanceTyp",), "has no InstanceTyp here"),
        ({"SlurmConfig": {}}, ("SlurmConfig",), "NodeType is needed"),
        ({"SlurmConfig": "Login"}, ("SlurmConfig",), "must be a structure, not str"),
        ({"SlurmConfig": {"NodeType": "Head"}}, ("SlurmConfig", "NodeType"), "not one of"),
        (
            {"InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": 0}}]},
            ("InstanceStorageConfigs", 0, "EbsVolumeConfig", "VolumeSizeInGB"),
            "is 0, not within 1 to 16384",
        ),
        ({"InstanceStorageConfigs": [{}] * 5}, ("InstanceStorageConfigs",), "5 entries, not 0 to"),
        ({"InstanceStorageConfigs": {}}, ("InstanceStorageConfigs",), "must be a list"),
        ({"KubernetesConfig": {"Labels": []}}, ("KubernetesConfig", "Labels"), "must be a map"),
    ],
)
def test_what_it_refuses_is_named_with_its_place(group, place, words):
    ((where, what),) = MODEL.problems(changed(**group))
    assert where == ("InstanceGroups", 1, *place)
    assert words in what


def test_patterns_that_python_cannot_read_are_left_to_the_service():
    assert MODEL.problems(cluster(Tags=[{"Key": "ü", "Value": "x"}])) == ()
