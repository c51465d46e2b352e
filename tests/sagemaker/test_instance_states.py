"""Each state that SageMaker may give an instance: only Running is in service, and none raises."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpctl.sagemaker.aws import _load_sagemaker_api_model
from hpctl.sagemaker.provider import parse_instances
from hpctl.toolkit.bounds import make_printable
from hpctl.vocabulary.cloud_facts import LEAVING, MOVED_BY_OTHERS, Instance, InstanceStatus

MODEL_WORDS = _load_sagemaker_api_model().shape_for("ClusterInstanceStatus").metadata["enum"]
IN_SERVICE = {"Running"}
FAILED = {"Failure", "Failed"}


def read(status: object) -> tuple[list[Instance], list[Any]]:
    """Read a list of two nodes, of which the first has this InstanceStatus."""
    first: Mapping[str, Any] = {"InstanceId": "i-1", "InstanceStatus": status}
    second = {"InstanceId": "i-2", "InstanceStatus": {"Status": "Running"}}
    return parse_instances([{**one, "InstanceGroupName": "g"} for one in (first, second)], ())


@given(st.text() | st.sampled_from([*InstanceStatus, "Failed"]).map(str), st.text(max_size=9))
def test_any_word_is_read_and_only_running_is_in_service(word, message):
    (first, second), flaws = read({"Status": word, "Message": message})
    assert flaws == []
    assert (first.status is InstanceStatus.RUNNING) is (word in IN_SERVICE)
    assert (first.status is InstanceStatus.FAILURE) is (word in FAILED)
    assert second.status is InstanceStatus.RUNNING
    if word not in [*InstanceStatus, *FAILED]:
        assert first.status is InstanceStatus.UNKNOWN
        assert first.message.startswith("status ")
        assert len(first.message) < 600
        assert first.message == make_printable(first.message)


@pytest.mark.parametrize("status", [{}, {"Status": None}, {"Status": ["Running"]}, {"Status": 7}])
def test_a_state_of_no_known_form_is_unknown(status):
    (first, _), flaws = read(status)
    assert (first.status, flaws) == (InstanceStatus.UNKNOWN, [])


@pytest.mark.parametrize("status", [None, "Running", 7, ["Running"]])
def test_what_is_no_state_costs_that_instance_alone(status):
    instances, flaws = read(status)
    assert [one.id for one in instances] == ["i-2"]
    assert len(flaws) == 1


def test_every_word_of_the_services_model_is_known():
    """botocore 1.44 has DetachInProgress and AttachInProgress."""
    assert set(MODEL_WORDS) >= {"Running", "Failure"}
    assert [word for word in MODEL_WORDS if word not in [*InstanceStatus]] == []
    assert {"DetachInProgress", "AttachInProgress"} <= MOVED_BY_OTHERS
    assert "DetachInProgress" in LEAVING
