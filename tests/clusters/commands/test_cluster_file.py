"""`hpctl cluster init`, `import` and `schema`: what they write, print and refuse."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from hpctl.clusters import request as provisioning
from hpctl.clusters.cluster_file import OFFERS
from hpctl.clusters.request import make_create_cluster_request
from hpctl.clusters.spec import parse_cluster_spec_yaml, read_cluster_spec
from hpctl.sandbox.emulator import HyperPodEmulator, NullMachineBackend
from tests.cli.test_golden import compare
from tests.clusters.api_model import FILES, complaints, files
from tests.clusters.bed import SANDBOX_KEYS
from tests.fakes import command_line

pytestmark = pytest.mark.integration

ROLE = "arn:aws:iam::111122223333:role/hyperpod"
FSX = "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com"
PLAIN = ("--name", "demo", "--role", ROLE, "--instance-type", "ml.p5.48xlarge", "--count", "8")
RICH = (
    *PLAIN, "--instance-type", "ml.p5en.48xlarge", "--group", "h100", "--partition", "gpu",
    "--subnet", "subnet-0123456789abcdef0", "--security-group", "sg-0123456789abcdef0",
    "--login-type", "ml.m5.xlarge", "--scripts", "s3://sagemaker-my-bucket/lifecycle",
    "--fsx-lustre", f"{FSX}/abcdefgh", "--fsx-openzfs", FSX, "--continuous",
)  # fmt: skip


def run(*args, stdin=""):
    return command_line.run("cluster", *args, stdin=stdin, width=100)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "flags"), [("plain", PLAIN), ("rich", RICH)])
def test_the_first_file_is_as_before(here, name, flags):
    result = run("init", *flags)
    assert result.exit_code == 0, result.output
    text = (here / "cluster.yaml").read_text()
    compare(f"cluster-init-{name}.yaml", text)
    assert all(len(line) <= 100 and line == line.rstrip() for line in text.splitlines())
    assert complaints(make_create_cluster_request(read_cluster_spec("cluster.yaml"))) == ""


def test_what_a_first_file_offers_can_be_taken_up(here):
    """Every commented key stands where it belongs: without its # the file is fine."""
    assert run("init", *PLAIN).exit_code == 0
    text = (here / "cluster.yaml").read_text()
    for key, example in OFFERS.items():
        block = "\n".join(f"    # {line}" for line in example.splitlines())
        assert block in text
        taken = text.replace(block, block.replace("    # ", "    "))
        said = yaml.safe_load(taken)["instance_groups"][-1]
        assert getattr(parse_cluster_spec_yaml(taken).groups[-1], key)
        assert key in said


def test_a_file_that_is_there_is_left_alone(here):
    Path("cluster.yaml").write_text("mine")
    assert parse_cluster_spec_yaml(run("init", *PLAIN, "--dry-run").stdout).name == "demo"
    result = run("init", *PLAIN)
    assert result.exit_code == 1
    assert "cannot write cluster.yaml: the file exists already" in str(result.exception)
    assert Path("cluster.yaml").read_text() == "mine"
    assert run("init", *PLAIN, "--force").exit_code == 0
    assert read_cluster_spec("cluster.yaml").name == "demo"
    answer = json.loads(run("init", "a.yaml", *PLAIN, "--json").stdout)
    assert (answer["path"], answer["yaml"]) == ("a.yaml", Path("a.yaml").read_text())
    assert {path.name for path in here.iterdir()} == {"a.yaml", "cluster.yaml"}


def test_on_a_terminal_it_asks_until_the_answer_is_one(here, monkeypatch):
    monkeypatch.setattr(
        "hpctl.clusters.commands.init_import.sys", SimpleNamespace(stdin=Terminal())
    )
    answers = (
        "demo_", "demo", ROLE, "ml.p5.48xlarge ml.p5en.48xlarge", "8",
        "subnet-0123456789abcdef0", "sg-0123456789abcdef0", "", "",
    )  # fmt: skip
    result = run("init", stdin="\n".join((*answers, "")))
    assert result.exit_code == 0, result.output
    assert "is not a name" in result.output
    spec = read_cluster_spec(here / "cluster.yaml")
    assert spec.groups[-1].types == ("ml.p5.48xlarge", "ml.p5en.48xlarge")
    assert spec.vpc is not None
    assert spec.groups[0].lifecycle is None


class Terminal:
    def isatty(self) -> bool:
        return True


def test_the_parameters_are_printed_or_written_beside_the_scripts(here):
    source = str(FILES / "provisioning.yaml")
    rendered = provisioning.render_provisioning_parameters(files()["provisioning"])
    for text in ((), ("--json",), ("-o", "p.json", "--json")):
        assert json.loads(run("provisioning-parameters", source, *text).stdout) == rendered
    assert json.loads(Path("p.json").read_text()) == rendered
    assert run("provisioning-parameters", source, "-o", "p.json").exit_code == 1
    refused = run("provisioning-parameters", str(FILES / "full.yaml"))
    assert refused.exit_code == 1
    assert "cannot use provisioning_parameters.json" in str(refused.exception)


def test_the_example_of_the_documentation_is_a_spec():
    page = (FILES.parents[2] / "docs" / "cluster.md").read_text()
    spec = parse_cluster_spec_yaml(page.partition("```yaml\n")[2].partition("```")[0])
    assert complaints(make_create_cluster_request(spec)) == ""


@pytest.fixture
def aws(here: Path, monkeypatch):
    for key, value in SANDBOX_KEYS.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    emulator = HyperPodEmulator(NullMachineBackend(), boot_time_s=0.0)
    emulator.start()
    request = make_create_cluster_request(files()["continuous"])
    for group in request["InstanceGroups"]:
        group.pop("ImageReleaseVersion", None)
        group.pop("TrainingPlanArn", None)
    emulator.create(request)
    emulator.wait_until_cluster_in_service("llm-next", 20)
    yield "--region", "us-west-2", "--endpoint-url", emulator.endpoint_url
    emulator.stop()
    assert emulator.response_errors == []


def test_a_living_cluster_becomes_a_file_that_changes_nothing(aws):
    result = run("import", "llm-next", "-o", "next.yaml", *aws)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("next.yaml says what llm-next is: head, h100")
    assert run("import", "llm-next", "-o", "next.yaml", *aws).exit_code == 1
    assert run("import", "llm-next", "-o", "next.yaml", "--force", *aws).exit_code == 0
    answer = json.loads(run("update", "next.yaml", "--dry-run", "--json", *aws).stdout)
    assert answer["changes"] == []
    printed = run("import", "llm-next", *aws).stdout
    assert parse_cluster_spec_yaml(printed).node_provisioning_mode == "Continuous"
    answer = json.loads(run("import", "llm-next", "--json", *aws).stdout)
    assert answer["schema"] == "hpctl.cluster-import/1"
    assert (answer["path"], answer["groups"], answer["yaml"]) == ("", ["head", "h100"], printed)


def test_a_request_becomes_a_file_with_no_account_at_all(here, monkeypatch):
    monkeypatch.setattr("hpctl.clusters.commands.init_import.make_aws_client_for_command", None)
    for name, spec in files().items():
        request = make_create_cluster_request(spec)
        Path("r.json").write_text(json.dumps(request, default=str))
        result = run("import", "--from-json", "r.json", "-o", "c.yaml", "--force")
        assert result.exit_code == 0, result.output
        assert make_create_cluster_request(read_cluster_spec("c.yaml")) == request
        untold = "The request does not tell the groups' roles" in result.stdout
        assert untold is (name == "provisioning")
    text = json.dumps(make_create_cluster_request(files()["full"]), default=str)
    piped = run("import", "--from-json", "-", stdin=text)
    compare("cluster-import-json.yaml", piped.stdout)


def test_a_request_is_named_or_a_cluster(here):
    Path("r.json").write_bytes(b"\xff")
    assert run("import", "llm-prod", "--from-json", "r.json").exit_code == 2
    broken = run("import", "--from-json", "r.json")
    assert broken.exit_code == 1
    assert "request in r.json" in str(broken.exception)
