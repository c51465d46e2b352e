"""What is wrong with a cluster file: all of it, each with its line and its fix."""

import jsonschema
import pytest

from hpctl.clusters.spec import ClusterSpecError, parse_cluster_spec_yaml
from hpctl.clusters.spec.schema import make_cluster_spec_json_schema
from tests.clusters.api_model import FILES
from tests.clusters.mixtures import GPU, HEAD, MIXTURES, Mixture, cluster

pytestmark = pytest.mark.integration


def problems(text: str) -> list[str]:
    with pytest.raises(ClusterSpecError) as caught:
        parse_cluster_spec_yaml(text)
    return list(caught.value.problems)


def only(text: str) -> str:
    found = problems(text)
    assert len(found) == 1, found
    return found[0]


def test_every_problem_is_reported_at_once_with_line_and_near_miss() -> None:
    text = """\
name: demo_
node_recovry: None
instance_groups:
  - name: head
    instance_type: ml.m5.xlarge
    count: 1
    role: controler
    execution_role: arn:aws:iam::111122223333:role/x
  - name: gpu
    instance_type: p5.48xlarge
    instance_types: [ml.p5.48xlarge]
    count: yes
    role: login
    partition: gpu
    execution_role: arn:aws:iam::111122223333:role/x
    lifecycle: {source_s3_uri: "s3://b/p", on_create: a.sh, on_init_complete: b.sh}
    storage:
      - ebs: {volume_size: 500}
"""
    assert problems(text) == [
        "name (line 1): is not a name of letters, digits and single dashes inside, such as h100-a"
        " (given 'demo_')",
        "node_recovry (line 2): no such key; did you mean 'node_recovery'?",
        "instance_groups.0.role (line 7): should be one of controller, login, compute"
        " (given 'controler'); did you mean 'controller'?",
        "instance_groups.1.instance_type (line 10): is not an instance type such as ml.p5.48xlarge"
        " (given 'p5.48xlarge')",
        "instance_groups.1.count (line 12): should be a whole number (given True)",
        "instance_groups.1.partition (line 14): is for role compute alone, not for login",
        "instance_groups.1.lifecycle.on_init_complete (line 16): say on_create or"
        " on_init_complete, not both: the service refuses it",
        "instance_groups.1.storage.0.ebs.volume_size (line 18): no such key; did you mean"
        " 'volume_size_in_gb'?",
    ]


@pytest.mark.parametrize("mixture", MIXTURES, ids=lambda m: m.says)
def test_a_mixture_that_the_service_refuses_is_refused_here(mixture: Mixture) -> None:
    assert mixture.says in only(cluster(*mixture.groups, **mixture.top))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "name: [", "instance_groups: null", "instance_groups: [null]", "name: 1\nname: 2",
     "instance_groups: {a: b}", "? {}\n: 1", "instance_groups: [{storage: [1], lifecycle: 3}]"],
)  # fmt: skip
def test_anything_at_all_is_a_spec_or_a_list_of_problems(text: str) -> None:
    assert problems(text)


def test_what_is_of_the_wrong_kind_is_reported_in_yamls_words() -> None:
    text = problems(
        cluster(HEAD, {**GPU, "storage": {"ebs": 1}, "instance_type": 12}, vpc="s", tags=["a"])
    )
    assert [line.partition(": ")[2] for line in text] == [
        "should be a mapping of keys (given 's')",
        "should be a mapping of keys",
        "should be text: put it in quotes (given 12)",
        "should be a list",
    ]
    assert problems("name: a\ninstance_groups: []") == [
        "instance_groups (line 2): needs at least 1 of them"
    ]


@pytest.mark.parametrize("path", sorted(FILES.glob("*.yaml")), ids=lambda path: path.stem)
def test_editors_find_nothing_wrong_with_the_samples(path):
    import yaml

    data = yaml.safe_load(path.read_text())
    for one in data["instance_groups"]:
        schedule = one.get("auto_patch", {}).get("patch_schedule")
        if schedule:
            schedule["next_patch_date"] = schedule["next_patch_date"].isoformat()
    jsonschema.Draft202012Validator.check_schema(make_cluster_spec_json_schema())
    jsonschema.validate(data, make_cluster_spec_json_schema())


def test_editors_see_a_misspelled_key_and_a_bad_name() -> None:
    validator = jsonschema.Draft202012Validator(make_cluster_spec_json_schema())
    bad = {"name": "a_", "nodes": 3, "instance_groups": []}
    assert {error.validator for error in validator.iter_errors(bad)} == {
        "pattern", "additionalProperties", "minItems",
    }  # fmt: skip
