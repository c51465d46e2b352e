"""What is wrong with a cluster file: all of it, each with its line and its mend."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest

from hpctl.clusters.schema import document
from hpctl.clusters.spec import SpecError, parse, read
from hpctl.errors import HpctlError
from tests.clusters.api_model import FILES

ROLE = "arn:aws:iam::111122223333:role/x"
HEAD = (
    "{name: head, instance_type: ml.m5.xlarge, count: 1, role: controller, "
    f"execution_role: '{ROLE}'}}"
)


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        parse(text)
    return list(caught.value.problems)


def group(**keys: object) -> str:
    """A compute group in YAML's flow style, with keys changed or, by None, taken out."""
    import json

    said = {
        "name": "gpu", "instance_type": "ml.p5.48xlarge", "count": 4, "role": "compute",
        "partition": "gpu", "execution_role": ROLE, **keys,
    }  # fmt: skip
    return json.dumps({key: value for key, value in said.items() if value is not None})


def cluster(*groups: str, top: str = "") -> str:
    listed = "".join(f"  - {one}\n" for one in groups)
    return f"name: demo\n{top}instance_groups:\n{listed}"


def only(text: str) -> str:
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


def test_a_plain_file_is_fine() -> None:
    spec = parse(cluster(HEAD, group()))
    assert [g.name for g in spec.groups] == ["head", "gpu"]
    assert spec.group("gpu") is spec.groups[1]
    assert spec.group("cpu") is None


def test_every_problem_is_told_at_once_with_line_and_near_miss() -> None:
    text = f"""\
name: demo_
node_recovry: None
instance_groups:
  - name: head
    instance_type: ml.m5.xlarge
    count: 1
    role: controler
    execution_role: {ROLE}
  - name: gpu
    instance_type: p5.48xlarge
    instance_types: [ml.p5.48xlarge]
    count: yes
    role: login
    partition: gpu
    execution_role: {ROLE}
    lifecycle: {{source_s3_uri: "s3://b/p", on_create: a.sh, on_init_complete: b.sh}}
    storage:
      - ebs: {{volume_size: 500}}
"""
    assert problems(text) == [
        "name (line 1): is not a name of letters, digits and single dashes inside, such as h100-a"
        " (given 'demo_')",
        "node_recovry (line 2): no such key; did you mean 'node_recovery'?",
        "instance_groups.0.role (line 7): input should be 'controller', 'login' or 'compute'"
        " (given 'controler'); did you mean 'controller'?",
        "instance_groups.1.instance_type (line 10): is not an instance type such as ml.p5.48xlarge"
        " (given 'p5.48xlarge')",
        "instance_groups.1.count (line 12): input should be a valid integer (given True)",
        "instance_groups.1.partition (line 14): is for role compute alone, not for login",
        "instance_groups.1.lifecycle.on_init_complete (line 16): say on_create or"
        " on_init_complete, not both: the service refuses it",
        "instance_groups.1.storage.0.ebs.volume_size (line 18): no such key; did you mean"
        " 'volume_size_in_gb'?",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (cluster(HEAD, group(name="head")), "1.name (line 4): another group has the name 'head'"),
        (cluster(HEAD, group(instance_type=None)), "1 (line 4): instance_type is needed"),
        (
            cluster(HEAD, group(instance_types=["ml.p5.48xlarge"])),
            "instance_type or instance_types",
        ),
        (
            cluster(HEAD, group(instance_type=None, instance_types=["ml.p5.48xlarge"] * 2)),
            "names a type twice",
        ),
        (cluster(HEAD, group(max_count=3)), "max_count (line 4): is 3, under count, which is 4"),
        (
            cluster(HEAD, group(min_count=5), top="node_provisioning_mode: Continuous\n"),
            "min_count (line 5): is 5, over count, which is 4",
        ),
        (cluster(HEAD, group(min_count=1)), "needs node_provisioning_mode: Continuous"),
        (cluster(HEAD, group(role=None, partition=None)), "role is needed"),
        (cluster(HEAD, group(partition=None)), "partition is needed with role compute"),
        (cluster(HEAD, group(partition="ml.p5")), "single dashes alone where the API"),
        (cluster(group()), "instance_groups (line 2): one group must have role: controller"),
        (
            cluster(HEAD, HEAD.replace("head", "head2")),
            "instance_groups.1.role (line 4): only one group may have role: controller",
        ),
        (
            cluster(HEAD, *(group(name=n, role="login", partition=None) for n in ("a", "b"))),
            "instance_groups.2.role (line 5): only one group may have role: login",
        ),
        (cluster(HEAD.replace("count: 1", "count: 0")), "the controller group needs an instance"),
        (
            cluster(HEAD.replace("count: 1", "count: 2")),
            "several head nodes need slurm_config: provisioning_parameters",
        ),
        (
            cluster(
                HEAD.replace("count: 1", "count: 2"), top="slurm_config: provisioning_parameters\n"
            ),
            "several head nodes need provisioning_parameters.head_nodes",
        ),
        (
            cluster(HEAD, top="provisioning_parameters: {}\n"),
            "provisioning_parameters (line 2): needs slurm_config: provisioning_parameters",
        ),
        (
            cluster(
                HEAD, top="slurm_config: provisioning_parameters\nslurm_config_strategy: Merge\n"
            ),
            "slurm_config_strategy (line 3): needs slurm_config: api",
        ),
        (
            cluster(
                HEAD,
                top="slurm_config: provisioning_parameters\nnode_provisioning_mode: Continuous\n",
            ),
            "node_provisioning_mode (line 3): needs slurm_config: api",
        ),
        (
            cluster(
                HEAD, top="node_provisioning_mode: Continuous\nslurm_config_strategy: Managed\n"
            ),
            "cannot be chosen with node_provisioning_mode: Continuous",
        ),
        (
            cluster(
                HEAD,
                top="accounting_database: {endpoint: db.example.com, secret_arn: "
                "'arn:aws:secretsmanager:us-east-1:111122223333:secret:x'}\n",
            ),
            "accounting_database (line 2): needs node_provisioning_mode: Continuous",
        ),
        (
            cluster(HEAD, group(lifecycle={"source_s3_uri": "s3://b/p"})),
            "on_create or on_init_complete is needed",
        ),
        (cluster(HEAD, group(storage=[{}])), "storage.0 (line 4): is one of ebs, fsx_lustre"),
        (cluster(HEAD, group(storage=[{"ebs": {}}])), "volume_size_in_gb is needed"),
        (
            cluster(HEAD, group(storage=[{"ebs": {"root_volume": True}}])),
            "volume_kms_key_id is needed with root_volume",
        ),
        (
            cluster(
                HEAD,
                group(
                    storage=[
                        {
                            "ebs": {
                                "root_volume": True,
                                "volume_kms_key_id": "k",
                                "volume_size_in_gb": 9,
                            }
                        }
                    ]
                ),
            ),
            "the root volume's size cannot be chosen",
        ),
        (
            cluster(HEAD, group(storage=[{"ebs": {"volume_size_in_gb": 9}}] * 2)),
            "storage.1.ebs (line 4): the second volume is described already",
        ),
        (
            cluster(
                HEAD,
                group(
                    storage=[
                        {
                            "fsx_lustre": {
                                "dns_name": "fs-0123456789abcdef0.fsx.x",
                                "mount_name": "a",
                            }
                        }
                    ]
                    * 2
                ),
            ),
            "/fsx is mounted by another entry already",
        ),
        (cluster(HEAD, group(subnets=["subnet-1"])), "security_groups are needed as well"),
        (
            cluster(
                HEAD,
                group(
                    capacity="spot",
                    training_plan="arn:aws:sagemaker:us-east-1:111122223333:training-plan/a",
                ),
            ),
            "a training plan holds no spot capacity",
        ),
        (
            cluster(HEAD, group(auto_patch={"patching_strategy": "WhenIdle", "drain_policy": {}})),
            "drain_policy (line 4): is for patching_strategy DrainFirst alone",
        ),
        (
            cluster(
                HEAD,
                group(
                    auto_patch={
                        "patching_strategy": "DrainFirst",
                        "idle_wait_window_in_seconds": 3600,
                    }
                ),
            ),
            "idle_wait_window_in_seconds (line 4): is not for DrainFirst",
        ),
        (
            cluster(HEAD, group(), top="hpctl: {spares: {gpus: 1}}\n"),
            "hpctl.spares.gpus (line 2): no such group; did you mean 'gpu'?",
        ),
        (cluster(HEAD, group(), top="hpctl: {spares: {gpu: 5}}\n"), "is 5, over the group's count"),
        (cluster(HEAD, top="hpctl: {spares: {head: 1}}\n"), "spares are of compute groups"),
        (cluster(HEAD, top="hpctl: {mode: own}\n"), "own needs node_recovery: None"),
        (cluster(HEAD, top="tags: {'aws:x': y}\n"), "aws: is reserved"),
    ],
)
def test_a_mixture_that_the_service_refuses_is_refused_here(text: str, says: str) -> None:
    assert says in only(text)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "name: [", "instance_groups: null", "instance_groups: [null]", "name: 1\nname: 2",
     "instance_groups: {a: b}", "? {}\n: 1", "instance_groups: [{storage: [1], lifecycle: 3}]"],
)  # fmt: skip
def test_anything_at_all_is_a_spec_or_a_list_of_problems(text: str) -> None:
    assert problems(text)


def test_what_is_of_the_wrong_kind_is_told_in_yamls_words() -> None:
    said = problems(
        cluster(HEAD, group(storage={"ebs": 1}, instance_type=12), top="vpc: subnet-1\ntags: [a]\n")
    )
    assert [line.partition(": ")[2] for line in said] == [
        "should be a mapping of keys (given 'subnet-1')",
        "should be a mapping of keys",
        "should be text: put it in quotes (given 12)",
        "should be a list",
    ]
    assert problems("name: a\ninstance_groups: []") == [
        "instance_groups (line 2): needs at least 1 of them"
    ]


def test_what_cannot_be_read_breaks_no_rule_by_being_left_out() -> None:
    """The role is misspelled: nobody says as well that there is no controller."""
    text = cluster(HEAD.replace("controller", "head-node"))
    assert "input should be 'controller'" in only(text)


def test_a_file_that_is_not_there_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(HpctlError, match="cannot be read: No such file"):
        read(tmp_path / "cluster.yaml")


@pytest.mark.parametrize("path", sorted(FILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_editors_find_nothing_wrong_with_the_samples(path: Path) -> None:
    import yaml

    data = yaml.safe_load(path.read_text())
    for one in data["instance_groups"]:
        schedule = one.get("auto_patch", {}).get("patch_schedule")
        if schedule:
            schedule["next_patch_date"] = schedule["next_patch_date"].isoformat()
    jsonschema.Draft202012Validator.check_schema(document())
    jsonschema.validate(data, document())


def test_editors_see_a_misspelled_key_and_a_bad_name() -> None:
    validator = jsonschema.Draft202012Validator(document())
    bad = {"name": "a_", "nodes": 3, "instance_groups": []}
    assert {error.validator for error in validator.iter_errors(bad)} == {
        "pattern", "additionalProperties", "minItems",
    }  # fmt: skip
