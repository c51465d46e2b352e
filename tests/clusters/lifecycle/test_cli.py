"""`hpctl cluster lifecycle`, as people and programs read it. HPCTL_REGOLD=1 writes the files."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from hpctl.cli.main import cli
from tests.cli.test_golden import compare
from tests.cli.test_json_contract import IS, documented, printed
from tests.process import run_text
from tests.s3 import BUCKET, s3, s3_endpoint

pytestmark = pytest.mark.integration

__all__ = ["s3", "s3_endpoint"]

URI = f"s3://{BUCKET}/demo/base"


def run(*args: str, width: int = 80) -> Result:
    env = {"COLUMNS": str(width)}
    return CliRunner(env=env).invoke(cli, ["cluster", "lifecycle", *args], prog_name="hpctl")


@pytest.fixture
def made(tmp_path) -> Path:
    (tmp_path / "site.d").mkdir()
    (tmp_path / "site.d/scratch.compute.sh").write_text("#!/bin/sh\necho made\n")
    result = run("bundle", "-o", str(tmp_path / "b"), "--add", str(tmp_path / "site.d"))
    assert result.exit_code == 0, result.output
    return tmp_path / "b"


STATES = {
    "run": {
        "state": "failed",
        "why": "mount_fsx: fs-0a.fsx.us-east-1.amazonaws.com has no address: DNS is not up yet",
        "at": "2026-11-21T21:55:24Z", "node": "ip-10-9-1-20", "role": "compute", "group": "h100",
        "instance_id": "i-00000000000000002", "mode": "OnCreate",
        "bundle": "8faf6701a8d875ad15ab8e8eb4cf1e100ed47b71bbf5114944a612649c3526b6",
        "warnings": ["containers"],
    },
    "mount_fsx": {
        "state": "failed",
        "why": "fs-0a.fsx.us-east-1.amazonaws.com has no address: DNS is not up yet",
        "tries": 6, "seconds": 64.21,
    },
    "mount_openzfs": {"state": "not_applicable", "why": "no FSx for OpenZFS is named"},
    "users": {"state": "done", "tries": 1, "seconds": 0.4},
    "containers": {
        "state": "failed", "weight": "optional",
        "why": "dpkg --install: exit code 1: cannot access archive", "tries": 3, "seconds": 9.0,
    },
    "pam": {"state": "off", "weight": "off", "why": "config.json"},
}  # fmt: skip


@pytest.fixture
def node(tmp_path) -> Path:
    directory = tmp_path / "var/lib/hpctl/lifecycle"
    directory.mkdir(parents=True)
    more = {"weight": "required", "tries": 0, "started": "2026-11-21T21:54:20Z", "why": ""}
    for order, (name, state) in enumerate(STATES.items()):
        known = {"step": name, "order": order, **more}
        (directory / f"{name}.json").write_text(json.dumps({**known, **state}))
    return tmp_path


def test_show_is_as_before(node):
    result = run("show", "--root", str(node))
    assert result.exit_code == 1
    compare("lifecycle-show.txt", result.stdout)


def test_a_problem_is_reported_with_exit_code_1_and_the_old_bundle_stays(made, tmp_path):
    before = (made / "MANIFEST").read_text()
    bad = tmp_path / "config.json"
    bad.write_text('{"steps": {"slurm": "maybe"}}')
    result = run("bundle", "-o", str(made), "--config", str(bad), width=200)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "1 problem(s), no bundle",
        "  config.json: steps.slurm: 'maybe' is none of required, optional, off",
    ]
    assert (made / "MANIFEST").read_text() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b", "config.json", "site.d"]


def test_a_whole_bucket_is_not_cleaned_up(made, s3):
    s3.put_object(Bucket=BUCKET, Key="checkpoints/step-1", Body=b"")
    assert run("push", str(made), f"s3://{BUCKET}", "--prune", "--yes").exit_code == 2
    assert s3.get_object(Bucket=BUCKET, Key="checkpoints/step-1")


def test_a_dry_run_sends_nothing(made, s3):
    result = run("push", str(made), URI, "--dry-run")
    assert result.stdout.endswith("\nDry run: nothing was done.\n")
    assert result.exit_code == 0, result.output
    assert "would send" in result.stdout
    assert "Contents" not in s3.list_objects_v2(Bucket=BUCKET)


def test_a_failing_step_fails_the_test_with_its_name(made, tmp_path):
    (tmp_path / "config.json").write_text('{"steps": {"site": "required"}}')
    (tmp_path / "site.d/scratch.compute.sh").write_text("#!/bin/sh\necho no disk; exit 3\n")
    more = ("--config", str(tmp_path / "config.json"), "--add", str(tmp_path / "site.d"))
    assert run("bundle", "-o", str(made), *more).exit_code == 0
    result = run("test", str(made), "--no-slurm", "--json")
    assert result.exit_code == 1
    view = json.loads(result.stdout)
    assert view["passed"] is False
    codes = {trial["role"]: trial["code"] for trial in view["trials"]}
    assert codes == {"controller": 0, "login": 0, "compute": 1}
    assert "FAILED step=site node=ip-10-77-2-5 after 2 tries" in view["trials"][2]["last"]


def test_show_on_a_machine_without_a_run_cannot_tell(tmp_path):
    result = run("show", "--root", str(tmp_path))
    assert "no lifecycle script of hpctl has run" in str(result.exception)


def test_the_json_is_what_is_documented(made, node, s3):
    (node / "var/lib/hpctl/lifecycle/broken.json.part").write_text("{")
    documents = {
        "lifecycle-bundle": run("bundle", "-o", str(made), "--json"),
        "lifecycle-push": run("push", str(made), URI, "--json"),
        "lifecycle-test": run("test", str(made), "--no-slurm", "--json"),
        "lifecycle-show": run("show", "--root", str(node), "--json"),
    }
    for name, result in documents.items():
        view = json.loads(result.stdout)
        answer = documented(f"hpctl.{name}/1")
        found = printed(view, "", set())
        missing = {path for path in answer if "problems" not in path} - set(found)
        assert (set(found) - set(answer), missing) == (set(), set()), name
        for path, values in found.items():
            kind, _, orelse = answer[path].partition(" or ")
            for value in values if "](#" not in kind else ():
                assert (orelse == "null" and value is None) or IS[kind](value), (path, value)


ROLE = "arn:aws:iam::000000000000:role/hyperpod"
GROUP = "{{name: {}, role: {}, instance_type: ml.m5.xlarge, count: 1, execution_role: {}}}"


def spec(style: str) -> str:
    groups = [
        GROUP.format("head", "controller", ROLE),
        GROUP.format("door", "login", ROLE),
        GROUP.format("gpu", "compute", f"{ROLE}, partition: gpu"),
    ]
    listed = "".join(f"  - {group}\n" for group in groups)
    return f"name: llm\nslurm_config: {style}\ninstance_groups:\n{listed}"


def test_a_bundle_has_the_roles_that_a_node_cannot_know(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("cluster.yaml").write_text(spec("api"))
    answer = run("bundle", "-o", "b")
    assert "config.json has the groups' roles, as cluster.yaml says them" in answer.stdout
    roles = json.loads(Path("b/config.json").read_text())["roles"]
    assert roles == {"head": "controller", "door": "login", "gpu": "compute"}
    # On the node: its group is all that resource_config.json says of it.
    resources = {
        "InstanceGroups": [
            {
                "Name": "door",
                "InstanceType": "ml.m5.xlarge",
                "Instances": [{"InstanceName": "door-1", "CustomerIpAddress": "10.9.0.7"}],
            }
        ],
        "SlurmConfig": {"PrimaryControllerIp": "10.9.0.5"},
    }
    Path("rc.json").write_text(json.dumps(resources))
    env = {
        "SAGEMAKER_RESOURCE_CONFIG_PATH": str(tmp_path / "rc.json"),
        "HPCTL_LIFECYCLE_ROOT": str(tmp_path / "root"),
        "HPCTL_LIFECYCLE_IP": "10.9.0.7",
        "HPCTL_LIFECYCLE_BACKOFF_S": "0.1",
    }
    Path("root").mkdir()
    born = run_text(["sh", "b/on_create.sh"], env={**os.environ, **env})
    assert "role=login group=door" in born.stdout + born.stderr
    Path("mine.json").write_text('{"roles": {"gpu": "login"}}')
    Path("other.yaml").write_text(spec("provisioning_parameters"))
    assert run("bundle", "-o", "b", "--config", "mine.json").exit_code == 0
    assert json.loads(Path("b/config.json").read_text())["roles"] == {**roles, "gpu": "login"}
    assert run("bundle", "-o", "b", "--spec", "other.yaml").exit_code == 0
    written = json.loads(Path("b/provisioning_parameters.json").read_text())
    assert (written["controller_group"], written["login_group"]) == ("head", "door")
    assert json.loads(Path("b/config.json").read_text())["roles"] == {}
    Path("mine.json").write_text('{"roles": 1}')
    assert "config.json" in str(run("bundle", "-o", "b", "--config", "mine.json").exception)
