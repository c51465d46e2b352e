"""The gathers over HTTP with real boto3: moto for EC2, S3, IAM, FSx; the emulator for the rest."""

import pytest

from hpctl.clusters import spec as specs
from hpctl.clusters.validate import FindingWithCheck, validate_spec
from hpctl.clusters.validate.wanted import CheckLevel
from tests.clusters.validate.account import Bed, denied
from tests.sagemaker.contract.beds import cluster

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def bed():
    made = Bed()
    yield made
    made.close()


def file(bed, group=None, gpu=None, **more):
    """A cluster that fits the account; `group` is said of both groups, `gpu` of the second."""
    scripts = {"source_s3_uri": "s3://sagemaker-ours/clean"}
    scripts["on_init_complete"] = "on_init_complete.sh"
    both = {"execution_role": bed.role, "lifecycle": scripts, **(group or {})}
    head = {"name": "controller", "role": "controller", "instance_type": "ml.m5.xlarge", "count": 1}
    work = {"name": "workers", "role": "compute", "instance_type": "ml.p5.48xlarge", "count": 2}
    data = {
        "name": "h100-a",
        "node_provisioning_mode": "Continuous",
        "accounting_database": {"endpoint": "db.example.org", "secret_arn": bed.secret["ARN"]},
        "vpc": {"subnets": [bed.subnet], "security_groups": [bed.group]},
        "instance_groups": [head | both, work | both | {"partition": "dev"} | (gpu or {})],
        **more,
    }
    return specs.build_cluster_spec(data, "the test")


def said(aws, spec, level=CheckLevel.FAIL, **more):
    found: tuple[FindingWithCheck, ...] = validate_spec(aws, spec, **more)
    return {f"{v.family}.{v.check}": v.what for v in found if v.level is level}


def test_an_account_that_fits_is_fine(bed: Bed) -> None:
    lines: list[tuple[str, int, int]] = []
    found = validate_spec(
        bed.account(), file(bed), report=lambda part, done, parts: lines.append((part, done, parts))
    )
    assert [v for v in found if v.level is not CheckLevel.OK] == []
    assert {v.family for v in found} >= {"network", "security-groups", "s3", "iam", "quotas"}
    assert sorted(done for _, done, _ in lines) == list(range(1, 8))


def test_what_is_not_there_is_named(bed: Bed) -> None:
    dns_name = "fs-0123456789abcdef0.fsx.us-west-2.amazonaws.com"
    gone = file(
        bed,
        gpu={
            "execution_role": "arn:aws:iam::123456789012:role/nobody",
            "storage": [{"fsx_lustre": {"dns_name": dns_name, "mount_name": "abcdefgh"}}],
            "lifecycle": {"source_s3_uri": "s3://nobody-has-this/x", "on_init_complete": "a.sh"},
        },
        vpc={"subnets": ["subnet-0123456789abcdef0"], "security_groups": ["sg-0123456789abcdef0"]},
        accounting_database={
            "endpoint": "db.example.org",
            "secret_arn": bed.secret["ARN"].replace(":db-", ":other-"),
        },
    )
    failed = said(bed.account(), gone)
    for check, text in {
        "network.subnets-exist": "no subnet subnet-0123456789abcdef0 in us-west-2",
        "security-groups.groups-exist": "no security group sg-0123456789abcdef0",
        "storage.file-system": "no file system fs-0123456789abcdef0",
        "s3.bucket": "no bucket nobody-has-this",
        "iam.role": "no role arn:aws:iam::123456789012:role/nobody",
        "cluster.accounting-secret": "there is no secret",
    }.items():
        assert text in failed[check]


def test_scripts_are_read_from_the_bucket(bed: Bed) -> None:
    uri = {"source_s3_uri": "s3://sagemaker-ours/scripts", "on_init_complete": "on_create.sh"}
    failed = said(bed.account(), file(bed, {"lifecycle": uri}), only=["s3"])
    assert "there is no s3://sagemaker-ours/scripts/on_create.sh" in failed["s3.entry"]
    assert "steps/users.sh has Windows line ends" in failed["s3.scripts"]


def test_the_living_cluster_counts(bed: Bed) -> None:
    network = {"Subnets": [bed.subnet], "SecurityGroupIds": [bed.group]}
    request = cluster("h100-a", 2, VpcConfig=network)
    bed.emulator.create(request)
    bed.emulator.wait_until_cluster_in_service("h100-a", 60)
    try:
        found = validate_spec(bed.account(), file(bed), only=["cluster", "network"])
        args = {v.check: v.what for v in found}
        assert args["name"] == "h100-a is a living cluster (InService): the file is held against it"
        assert "for 0 new nodes" in args["room"]
        # Beside it a cluster of another name has to share the quota.
        other = file(bed, name="h100-b")
        bed.emulator.capacity.quotas["ml.p5.48xlarge"] = 3
        failed = said(bed.account(), other)
        assert "is 3, and the file wants 2 beside 2 in other" in failed["quotas.types"]
    finally:
        bed.emulator.capacity.quotas.clear()
        bed.emulator.world.clusters.clear()


def test_who_may_not_look_reads_what_to_allow(bed: Bed) -> None:
    aws = bed.account(
        iam={"simulate_principal_policy": denied},
        service_quotas={"list_service_quotas": denied},
        ec2={"describe_subnets": denied},
    )
    unknown = said(aws, file(bed), CheckLevel.UNKNOWN)
    assert set(unknown) == {"iam.allowed", "quotas.types", "network.subnets-exist"}
    assert all("AccessDenied" in what for what in unknown.values())
    assert said(aws, file(bed)) == {}


def test_a_simulation_names_what_the_role_lacks(bed: Bed) -> None:
    failed = said(bed.account(), file(bed, {"execution_role": bed.silent}), only=["iam"])
    assert failed.keys() == {"iam.allowed"}
    assert "logs:PutLogEvents on arn:aws:logs:us-west-2:" in failed["iam.allowed"]
    assert "/aws/sagemaker/Clusters/h100-a/" in failed["iam.allowed"]
    assert "s3:GetObject" not in failed["iam.allowed"]
    assert f"secretsmanager:GetSecretValue on {bed.secret['ARN']}" in failed["iam.allowed"]


def test_the_zone_of_a_training_plan_is_held_against_the_subnets(bed: Bed) -> None:
    for zone, failed in (("us-west-2a", set()), ("us-west-2d", {"capacity.plan-zone"})):
        spec = file(bed, gpu={"training_plan": bed.plan(zone)})
        assert said(bed.account(), spec).keys() == failed
    none = file(bed, gpu={"training_plan": bed.plan("us-west-2a").replace("p5-", "p6-")})
    assert "there is no training plan" in said(bed.account(), none)["capacity.plan"]
