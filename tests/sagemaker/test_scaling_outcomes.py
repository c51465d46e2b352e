"""What BatchAdd-, BatchDeleteClusterNodes' answers mean, and UpdateCluster in their place."""

import botocore.session

from hpctl.sagemaker import classify, provider
from hpctl.vocabulary.outcome import Outcome, OutcomeKind
from tests.clusters.bed import SANDBOX_KEYS
from tests.sagemaker.contract.beds import CLUSTER, EmulatorBed

MODEL = botocore.session.get_session().get_service_model("sagemaker")
A, B, C = (f"i-{c * 17}" for c in "abc")


def test_a_group_between_states_is_asked_again_and_a_wrong_one_is_not():
    for code, transient in (
        ("InvalidInstanceGroupStatus", True),
        ("InstanceGroupNotFound", False),
        ("IncompatibleAvailabilityZones", False),
        ("IncompatibleInstanceTypes", False),
    ):
        failed = {"InstanceGroupName": "w", "ErrorCode": code, "FailedCount": 1}
        found = provider.classify_add_nodes_answer("w", 1, {"Successful": [], "Failed": [failed]})
        assert (found.kind, found.code, found.transient) == (OutcomeKind.REJECTED, code, transient)
    assert provider.classify_add_nodes_answer("w", 1, {}).kind is OutcomeKind.AMBIGUOUS


def test_what_the_model_does_not_name_is_no_answer():
    """A node given back to Slurm while the service deletes it would lose its job."""
    failed = {"NodeId": A, "Code": "InternalServerError", "Message": "?"}
    assert (
        classify.classify_batch_node_response([A], {"Failed": [failed]})[A].kind
        is OutcomeKind.AMBIGUOUS
    )
    failed = {"InstanceGroupName": "w", "ErrorCode": "InternalServerError"}
    assert (
        provider.classify_add_nodes_answer("w", 1, {"Failed": [failed]}).kind
        is OutcomeKind.AMBIGUOUS
    )
    codes = {
        code
        for order in ("AddCluster", "DeleteCluster", "RebootCluster", "ReplaceCluster")
        for code in MODEL.shape_for(f"Batch{order}NodesErrorCode").metadata["enum"]
    }
    assert codes - {"InternalServerError"} == classify.BUSY | classify.REFUSED


def described(**more) -> dict[str, object]:
    known = {"InstanceGroupName": "w", "InstanceType": "ml.p5.48xlarge", "TargetCount": 4, **more}
    return {"InstanceGroups": [known]}


def test_a_group_that_a_user_made_larger_is_never_sent_a_smaller_size():
    for size in (3, 4):
        found = provider.make_update_cluster_request("c", "w", size, described())
        assert found == Outcome.accepted("w is set to 4 instances already")
    grown = provider.make_update_cluster_request("c", "w", 5, described())
    assert grown["InstanceGroups"][0]["InstanceCount"] == 5


def test_a_flexible_group_is_restated_in_the_words_of_the_request():
    text = described(
        InstanceType="",
        MinCount=1,
        InstanceRequirements={
            "CurrentInstanceTypes": ["ml.p5.48xlarge"],
            "DesiredInstanceTypes": ["ml.p5.48xlarge", "ml.p5e.48xlarge"],
        },
        AutoPatchConfig={"PatchingStrategy": "WhenIdle", "CurrentPatchSchedule": {}},
        CurrentImageId="ami-1",
    )
    grown = provider.make_update_cluster_request("c", "w", 5, text)
    assert isinstance(grown, dict)
    (group,) = grown["InstanceGroups"]
    assert group == {
        "InstanceGroupName": "w",
        "InstanceCount": 5,
        "MinInstanceCount": 1,
        "InstanceRequirements": {"InstanceTypes": ["ml.p5.48xlarge", "ml.p5e.48xlarge"]},
        "AutoPatchConfig": {"PatchingStrategy": "WhenIdle"},
    }


def test_a_cluster_that_is_not_continuous_grows_by_its_size(monkeypatch):
    for key, value in SANDBOX_KEYS.items():
        monkeypatch.setenv(key, value)
    bed = EmulatorBed(workers=2, NodeProvisioningMode="Continuous")
    try:
        with bed.emulator.world.lock:
            bed.emulator.world.cluster(CLUSTER).spec.pop("NodeProvisioningMode")
        for _ in range(2):
            added = bed.provider.add("workers", 1, 3, "hpctl-s-1")
            bed.settle()
            assert added.kind is OutcomeKind.ACCEPTED, added
        view = bed.provider.view()
        assert not view.continuous
        assert (view.groups["workers"].current, view.groups["controller"].current) == (3, 1)
        assert "UpdateCluster" in [c.operation for c in bed.emulator.calls.all()]
        assert bed.provider.add("nobody", 1, 1, "hpctl-s-2").code == "InstanceGroupNotFound"
    finally:
        bed.close()
