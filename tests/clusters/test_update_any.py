"""Whatever a cluster is, an update orders what the service takes, and leaves no difference."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from hpctl.clusters import apply
from hpctl.clusters.apply import PollSchedule, describe_existing_cluster
from hpctl.clusters.diff import SpecChangeKind, diff_request_with_cluster
from hpctl.clusters.fleet_reading import read_node_rows
from hpctl.clusters.order_call import choose_node_id_for_api_call
from hpctl.clusters.request import make_create_cluster_request
from tests.clusters.any_spec import specs
from tests.examples import examples

pytestmark = pytest.mark.integration

PATIENCE = PollSchedule(time.sleep, looks=2, every_s=0.01)


def small(spec):
    """With few instances, no minimum and no plan: what is tried here is what is restated."""
    none = dict.fromkeys(("min_count", "max_count", "training_plan"))
    groups = [replace(group, count=1 + n % 3, **none) for n, group in enumerate(spec.groups)]
    return replace(spec, instance_groups=tuple(groups))


CHANGES = st.fixed_dictionaries(
    {
        "more": st.integers(-1, 2),
        "checks": st.booleans(),
        "recovery": st.sampled_from(["Automatic", "None"]),
        "leaves": st.booleans(),
    }
)


def changed(request, how):
    groups = [dict(group) for group in request["InstanceGroups"]]
    last = groups[-1]
    if last.get("SlurmConfig", {}).get("NodeType") != "Controller":
        last["InstanceCount"] = max(0, last["InstanceCount"] + how["more"])
        last.pop("OnStartDeepHealthChecks", None)
        if how["checks"]:
            last["OnStartDeepHealthChecks"] = ["InstanceStress"]
        if how["leaves"] and len(groups) > 2 and "SlurmConfig" in last:
            groups.pop()
    return {**request, "InstanceGroups": groups, "NodeRecovery": how["recovery"]}


@settings(max_examples=examples(4), deadline=None, suppress_health_check=list(HealthCheck))
@given(spec=specs(), how=CHANGES)
def test_an_update_leaves_only_what_goes_by_name(bed, spec, how):
    emulator, aws = bed.emulator, bed.aws
    emulator.world.clusters.clear()
    before = make_create_cluster_request(small(spec))
    name = before["ClusterName"]
    emulator.create(before)
    emulator.wait_until_cluster_in_service(name, 20)
    wanted = changed(before, how)
    found = describe_existing_cluster(aws, name)
    plan = apply.plan_cluster_update(wanted, found, diff_request_with_cluster(wanted, found))
    apply.apply_cluster_update(aws, replace(plan, tags_set={}, tags_gone=()), PATIENCE)
    emulator.wait_until_cluster_in_service(name, 20)
    found = describe_existing_cluster(aws, name)
    counts = {g["InstanceGroupName"]: g["TargetCount"] for g in found["InstanceGroups"]}
    assert counts == {**plan.before, **plan.targets}
    assert {change.kind for change in diff_request_with_cluster(wanted, found).changes} <= {
        SpecChangeKind.DESTROY
    }
    apply.delete_instance_groups(
        aws,
        name,
        plan.leaving,
        PATIENCE,
        {choose_node_id_for_api_call(r) for r in read_node_rows(aws, name)},
    )
    emulator.wait_until_cluster_in_service(name, 20)
