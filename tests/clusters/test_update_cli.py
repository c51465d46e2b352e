"""`hpctl cluster update` as a person runs it, over HTTP."""

import json
from typing import Any

import pytest
import yaml

from hpctl.errors import HpctlError
from tests.clusters.bed import CLUSTER
from tests.clusters.shell import FAST, SPEC, Shell


def test_an_update_grows_first_and_then_shrinks_by_name(shell: Shell) -> None:
    shell.head_node()
    spec = yaml.safe_load(shell.file.read_text())
    spec["instance_groups"][1]["count"] = 3
    spec["instance_groups"].append(
        {
            **spec["instance_groups"][1],
            "name": "more",
            "instance_type": "ml.g5.48xlarge",
            "count": 2,
        }
    )
    shell.file.write_text(yaml.safe_dump(spec))
    text = shell.said("update", str(shell.file), "--no-validate", *FAST, stdin="y\n")
    assert "workers 3/3, more 2/2" in text
    made = [o for o in shell.bed.operations() if o in ("UpdateCluster", "BatchDeleteClusterNodes")]
    assert made == ["UpdateCluster", "BatchDeleteClusterNodes"]
    assert shell.said("update", str(shell.file)) == "update llm: there is nothing to do\n"


def test_a_group_that_leaves_is_emptied_node_by_node_first(shell: Shell) -> None:
    slurm = shell.head_node()
    slurm.run(7, "ip-127-0-1-3")
    slurm.at_look += [lambda: None] * 3 + [lambda: slurm.end(7)]
    spec = yaml.safe_load(shell.file.read_text())
    spec["instance_groups"].pop()
    spec["instance_groups"].append({**SPEC["instance_groups"][1], "name": "others", "count": 1})
    shell.file.write_text(yaml.safe_dump(spec))
    text = shell.said("update", str(shell.file), "--no-validate", "--yes", *FAST)
    assert "others 1/1" in text
    assert "workers" not in text.splitlines()[-1]
    assert list(shell.bed.emulator.world.cluster(CLUSTER).groups) == ["controller", "others"]


def test_what_is_impossible_is_shown_and_nothing_is_done(shell: Shell) -> None:
    shell.write(instance_type="ml.p5e.48xlarge", count=6)
    text = shell.said("update", str(shell.file), "--yes", *FAST, code=1)
    assert "! workers.InstanceType: ml.p5.48xlarge -> ml.p5e.48xlarge" in text
    assert "nothing was done" in text
    assert "UpdateCluster" not in shell.bed.operations()


@pytest.mark.parametrize("how", ["--dry-run", "--yes"])
def test_an_update_that_grows_is_checked_as_a_create_is(shell: Shell, how: str) -> None:
    checked: list[int] = []

    def fail(_file: object, spec: Any, aws: object) -> None:
        assert aws is shell.bed.aws
        checked.append(spec.groups[1].count)
        raise HpctlError("cluster.yaml: 1 check failed; nothing was ordered")

    shell.patch.setattr("hpctl.cli.cluster.validate.before_spending", fail)
    shell.write(count=6000)
    result = shell.run("update", str(shell.file), how, *FAST)
    assert (result.exit_code, checked) == (1, [6000])
    assert "UpdateCluster" not in shell.bed.operations()
    assert "1 check failed" in str(result.exception)
    # What only goes needs nothing that could be wrong.
    shell.write(count=3)
    assert shell.run("update", str(shell.file), "--dry-run").exit_code == 0
    assert checked == [6000]


def test_a_dry_run_of_update_shows_the_tags_that_come(shell: Shell) -> None:
    spec = {**SPEC, "tags": {"team": "llm"}}
    shell.file.write_text(yaml.safe_dump(spec))
    view = json.loads(shell.said("update", str(shell.file), "--dry-run", "--json"))
    (order,) = view["orders"]
    assert order["operation"] == "AddTags"
    assert order["request"]["Tags"] == [{"Key": "team", "Value": "llm"}]
    assert order["request"]["ResourceArn"].startswith("arn:aws:sagemaker:")
    assert "AddTags" not in shell.bed.operations()
