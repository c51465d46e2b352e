"""What only the SageMaker adapter does, over HTTP: paging, modes, time-outs, hints."""

import time
from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest

from hpctl.sagemaker import provider as details
from hpctl.sagemaker.provider import SageMakerProvider
from hpctl.sandbox.emulator.faults import make_validation_error
from hpctl.sandbox.emulator.launch import ServiceTimings
from hpctl.sandbox.emulator.service import ApiCallLog
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.cloud_facts import InstanceStatus
from hpctl.vocabulary.outcome import OutcomeKind
from tests.sagemaker.contract.beds import CLUSTER, EmulatorBed, GroupBed, cluster

pytestmark = [pytest.mark.integration, pytest.mark.contract]


def provider(bed: EmulatorBed, **more) -> SageMakerProvider:
    settings = {"region": "us-west-2", "endpoint_url": bed.emulator.endpoint_url, **more}
    return SageMakerProvider(CLUSTER, sleep=lambda _s: None, **settings)


def test_a_cluster_that_is_not_continuous_has_no_logical_ids_and_recovers_by_default(emulated):
    spec = cluster("plain")
    del spec["NodeProvisioningMode"], spec["NodeRecovery"]
    emulated.emulator.create(spec)
    emulated.emulator.wait_until_cluster_in_service("plain", 60)
    url = emulated.emulator.endpoint_url
    plain = SageMakerProvider("plain", region="us-west-2", endpoint_url=url)
    view = plain.view()
    assert (view.automatic, emulated.provider.view().automatic) == (True, False)
    instances = view.instances.values()
    assert [i.logical_id for i in instances] == [None] * 5
    assert [i.group for i in instances if i.protected] == ["controller"]


def test_a_continuous_cluster_that_refuses_logical_ids_is_listed_without(emulated, monkeypatch):
    listed = emulated.emulator.handlers["ListClusterNodes"]

    def refuse(request):
        if request.get("IncludeNodeLogicalIds"):
            raise make_validation_error("IncludeNodeLogicalIds is not supported for this cluster.")
        return listed(request)

    monkeypatch.setitem(emulated.emulator.handlers, "ListClusterNodes", refuse)
    assert len(emulated.provider.view().instances) == 5


def test_nodes_that_wait_for_an_instance_are_left_out(emulated, monkeypatch):
    monkeypatch.setattr(emulated.emulator.launches, "timings", ServiceTimings(boot_s=0.5))
    emulated.add(2)
    assert len(emulated.provider.view().instances) == 5
    emulated.settle()
    assert len(emulated.provider.view().instances) == 7


def test_words_that_the_model_does_not_have_yet(emulated, monkeypatch):
    real = emulated.provider._read.list_cluster_nodes
    text = iter(["Failed", "Hibernating", "DetachInProgress", "AttachInProgress", "Running"])

    def patched(**request):
        answer = real(**request)
        for summary in answer["ClusterNodeSummaries"]:
            summary["InstanceStatus"]["Status"] = next(text)
        return answer

    monkeypatch.setattr(emulated.provider._read, "list_cluster_nodes", patched)
    seen = [i.status for i in emulated.provider.view().instances.values()]
    assert seen == [
        InstanceStatus.FAILURE,
        InstanceStatus.UNKNOWN,
        InstanceStatus.DETACHING,
        InstanceStatus.ATTACHING,
        InstanceStatus.RUNNING,
    ]


def test_a_read_is_retried_a_bounded_number_of_times(emulated):
    emulated.emulator.faults.add("throttle", calls=2, operations=["DescribeCluster"])
    assert len(emulated.provider.view().instances) == 5
    assert emulated.emulator.calls.count("DescribeCluster") == 3
    emulated.emulator.faults.add("internal_error", operations=["ListClusterNodes"])
    with pytest.raises(ServiceUnavailable, match="ListClusterNodes"):
        emulated.provider.view()
    assert emulated.emulator.calls.count("ListClusterNodes") == 1 + 3


@pytest.mark.parametrize(
    ("break_it", "hint"),
    [
        (lambda e: e.faults.add("access_denied"), "IAM action sagemaker:DescribeCluster"),
        (lambda e: e.world.clusters.clear(), "no cluster 'contract' here"),
        (lambda e: e.faults.add("throttle"), "polling interval"),
    ],
)
def test_unavailable_names_the_fix(emulated, break_it, hint):
    break_it(emulated.emulator)
    with pytest.raises(ServiceUnavailable) as caught:
        emulated.provider.view()
    assert hint in caught.value.hint
    assert "sagemaker:DescribeCluster of cluster contract" in str(caught.value)


def test_without_credentials_a_mutation_was_certainly_not_sent(emulated, monkeypatch):
    node = emulated.worker()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    bare = provider(emulated)
    outcome = bare.replace([node.id])[node.id]
    assert (outcome.kind, outcome.code) == (OutcomeKind.REJECTED, "NoCredentialsError")
    with pytest.raises(ServiceUnavailable) as caught:
        bare.view()
    assert "credentials" in caught.value.hint
    assert emulated.calls() == []


def test_a_slow_answer_is_ambiguous_and_the_order_may_come_later(emulated):
    node = emulated.worker()
    emulated.emulator.faults.add(
        "latency", seconds=0.6, calls=1, operations=["BatchReplaceClusterNodes"]
    )
    outcome = provider(emulated, mutate_timeout_s=0.2).replace([node.id])[node.id]
    assert (outcome.kind, outcome.code) == (OutcomeKind.AMBIGUOUS, "ReadTimeoutError")
    emulated.until(lambda: emulated.truly_replaced() == [node.id])
    assert len(emulated.calls()) == 1


def test_a_cluster_that_is_being_updated_refuses_for_now(emulated):
    node = emulated.worker()
    world = emulated.emulator.world
    world.cluster(CLUSTER).status = "SystemUpdating"
    outcome = emulated.provider.replace([node.id])[node.id]
    assert (outcome.kind, outcome.transient) == (OutcomeKind.REJECTED, True)
    assert "SystemUpdating" in outcome.detail
    assert emulated.truly_replaced() == []


def test_a_chunk_that_fails_does_not_stop_the_next():
    bed = EmulatorBed(workers=30)
    try:
        wanted = [i.id for i in bed.provider.view().instances.values() if not i.protected]
        bed.throttle()
        outcomes = bed.provider.reboot(wanted)
        kinds = [outcomes[i].kind for i in wanted]
        assert kinds == [OutcomeKind.REJECTED] * 25 + [OutcomeKind.ACCEPTED] * 5
    finally:
        bed.close()


def described(bed: EmulatorBed) -> list[str]:
    return [str(c.request["NodeId"]) for c in bed.emulator.calls.all("DescribeClusterNode")]


def test_an_address_that_the_list_does_not_tell_is_asked_for_once(grouped):
    seen = provider(grouped)
    first = seen.view().instances
    assert {i.address for i in first.values()} == {f"127.0.1.{n}" for n in range(1, 6)}
    assert {i.dns for i in first.values()} == {""}
    assert sorted(described(grouped)) == sorted(first)
    assert seen.view().instances == first
    assert len(described(grouped)) == 5
    old = grouped.worker()
    grouped.emulator.calls = ApiCallLog()
    seen.replace([old.id])
    grouped.settle()
    after = seen.view().instances
    (new,) = after.keys() - first.keys()
    assert described(grouped) == [new]
    assert after[new].address == old.address.replace("127.0.", "127.1.")


def test_a_host_name_that_spells_the_address_needs_no_call(emulated):
    instances = provider(emulated).view().instances.values()
    assert {i.address for i in instances} == {f"127.0.1.{n}" for n in range(1, 6)}
    assert described(emulated) == []


@pytest.mark.parametrize("date", [None, "", "yesterday", "Fri, 31 Dec 9999 23:59:59 -2359"])
def test_a_date_that_cannot_be_read_moves_no_launch(date):
    assert details.measure_local_clock_lead(date, datetime.now(UTC)) == timedelta()


def test_calls_for_addresses_are_rationed_and_the_newest_instances_come_first(monkeypatch):
    monkeypatch.setattr(details, "AT_MOST", 20)
    clock = 1000.0
    monkeypatch.setattr(details, "time", Mock(spec_set=time, monotonic=lambda: clock))
    bed = GroupBed(60)
    try:
        seen = provider(bed)
        known = [i.id for i in seen.view().instances.values() if i.address]
        assert len(known) == len(described(bed)) == 20
        assert sum(bool(i.address) for i in seen.view().instances.values()) == 20
        clock += 1.0
        bed.add(1)
        bed.settle()
        listed = seen.view().instances.values()
        newest = max(listed, key=lambda i: i.launched or datetime.min.replace(tzinfo=UTC))
        assert newest.address
        assert len(described(bed)) == 20 + int(details.A_SECOND)
    finally:
        bed.close()


def test_who_may_not_describe_sees_the_instances_without_addresses(grouped):
    """And asks no further: a service that throttles is left alone until the next view."""
    for kind in ("throttle", "access_denied"):
        seen = provider(grouped)
        grouped.emulator.calls = ApiCallLog()
        grouped.emulator.faults.add(kind, operations=["DescribeClusterNode"])
        assert {i.address for i in seen.view().instances.values()} == {""}
        assert 1 <= len(described(grouped)) <= 5
        grouped.emulator.faults.clear(kind)
        assert all(i.address for i in seen.view().instances.values())


def test_a_cluster_older_than_an_order_says_what_it_needs_first(emulated):
    """The texts of BatchReplace- and BatchDeleteClusterNodes in botocore's model say that an
    existing cluster needs one UpdateClusterSoftware; the refusal's own words are not known."""
    emulated.emulator.faults.add("unpatched", operations=["BatchReplaceClusterNodes"])
    known = emulated.emulator.world.cluster(CLUSTER)
    worker = emulated.worker(0)
    refused = emulated.provider.replace([worker.id])[worker.id]
    assert "software-update" not in refused.detail  # it is young: something else is wrong
    known.created = datetime(2025, 6, 1, tzinfo=UTC)
    assert emulated.provider.view().unpatched == ("BatchReplaceClusterNodes",)
    refused = emulated.provider.replace([worker.id])[worker.id]
    assert (refused.kind, refused.transient) == (OutcomeKind.REJECTED, False)
    assert f"`hpctl cluster software-update {CLUSTER}`" in refused.detail
    assert emulated.provider.reboot([worker.id])[worker.id].kind is OutcomeKind.ACCEPTED

    def rebooted() -> bool:
        return emulated.provider.view().instances[worker.id].status is InstanceStatus.RUNNING

    emulated.until(rebooted)
    emulated.emulator.handlers["UpdateClusterSoftware"]({"ClusterName": CLUSTER})
    emulated.until(lambda: not emulated.provider.view().unpatched)
    emulated.emulator.wait_until_cluster_in_service(CLUSTER, 60)
    emulated.until(rebooted)
    assert emulated.provider.replace([worker.id])[worker.id].kind is OutcomeKind.ACCEPTED
