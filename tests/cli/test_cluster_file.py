"""`hpctl cluster init`, `import` and `schema`: what they write, print and refuse."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result

from hpctl.clusters import request as provisioning
from hpctl.clusters.cluster_file import OFFERS
from hpctl.clusters.request import create_request
from hpctl.clusters.spec import parse, read
from hpctl.sandbox.emulator import Emulator, NullMachines
from tests.cli import conftest
from tests.cli.test_golden import compare
from tests.clusters.api_model import FILES, complaints, files
from tests.clusters.bed import SANDBOX_KEYS

ROLE = "arn:aws:iam::111122223333:role/hyperpod"
FSX = "fs-0123456789abcdef0.fsx.us-east-1.amazonaws.com"
PLAN = "arn:aws:sagemaker:us-east-1:111122223333:training-plan/p5-in-may"
PLAIN = ("--name", "demo", "--role", ROLE, "--instance-type", "ml.p5.48xlarge", "--count", "8")
RICH = (
    *PLAIN, "--instance-type", "ml.p5en.48xlarge", "--group", "h100", "--partition", "gpu",
    "--subnet", "subnet-0123456789abcdef0", "--security-group", "sg-0123456789abcdef0",
    "--login-type", "ml.m5.xlarge", "--scripts", "s3://sagemaker-my-bucket/lifecycle",
    "--fsx-lustre", f"{FSX}/abcdefgh", "--fsx-openzfs", FSX, "--continuous",
)  # fmt: skip


def run(*args: str, stdin: str = "") -> Result:
    return conftest.run("cluster", *args, stdin=stdin, width=100)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "flags"), [("plain", PLAIN), ("rich", RICH)])
def test_the_first_file_is_as_before(here: Path, name: str, flags: tuple[str, ...]) -> None:
    result = run("init", *flags)
    assert result.exit_code == 0, result.output
    text = (here / "cluster.yaml").read_text()
    compare(f"cluster-init-{name}.yaml", text)
    assert all(len(line) <= 100 and line == line.rstrip() for line in text.splitlines())
    spec = read("cluster.yaml")
    assert complaints(create_request(spec)) == ""


def test_what_a_first_file_offers_can_be_taken_up(here: Path) -> None:
    """Every commented key stands where it belongs: without its # the file is fine."""
    assert run("init", *PLAIN).exit_code == 0
    text = (here / "cluster.yaml").read_text()
    for key, example in OFFERS.items():
        block = "\n".join(f"    # {line}" for line in example.splitlines())
        assert block in text
        taken = text.replace(block, block.replace("    # ", "    "))
        assert key in parse(taken).groups[-1].model_fields_set


def test_a_file_that_is_there_is_left_alone(here: Path) -> None:
    Path("cluster.yaml").write_text("mine")
    assert parse(run("init", *PLAIN, "--dry-run").stdout).name == "demo"
    result = run("init", *PLAIN)
    assert result.exit_code == 1
    assert "cluster.yaml is there already" in str(result.exception)
    assert Path("cluster.yaml").read_text() == "mine"
    assert run("init", *PLAIN, "--force").exit_code == 0
    assert read("cluster.yaml").name == "demo"
    said = json.loads(run("init", "a.yaml", *PLAIN, "--json").stdout)
    assert said["path"] == "a.yaml"
    assert said["yaml"] == Path("a.yaml").read_text()
    assert {path.name for path in here.iterdir()} == {"a.yaml", "cluster.yaml"}


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        ((), 2, "--name, --role, --instance-type, --count must be given where nobody can be"),
        (("--role", "hyperpod"), 2, "'hyperpod' is not a role's ARN such as arn:aws:iam::"),
        ((*PLAIN, "--instance-type", "p5.48xlarge"), 2, "is not an instance type such as ml.p5"),
        ((*PLAIN, "--fsx-lustre", FSX), 2, "has no mount name: write DNS-NAME/MOUNT-NAME"),
        ((*PLAIN, "--spot", "--training-plan", PLAN), 1, "a training plan holds no spot capacity"),
    ],
)
def test_what_cannot_be_is_said_and_nothing_is_written(
    here: Path, flags: tuple[str, ...], code: int, says: str
) -> None:
    result = run("init", *flags)
    assert result.exit_code == code
    assert says in f"{result.stderr} {result.exception}"
    assert list(here.iterdir()) == []


def test_on_a_terminal_it_asks_until_the_answer_is_one(here: Path) -> None:
    """A real terminal: each line is typed once the question stands there."""
    answers = [
        (b"Name of the cluster", b"demo_"),
        (b"is not a name", b"demo"),
        (b"Execution role", ROLE.encode()),
        (b"Instance type of the workers", b"ml.p5.48xlarge ml.p5en.48xlarge"),
        (b"How many workers", b"8"),
        (b"Subnets", b"subnet-0123456789abcdef0"),
        (b"Security groups", b"sg-0123456789abcdef0"),
        (b"S3 prefix", b""),
        (b"FSx for Lustre", b""),
    ]
    said, code = typed([sys.executable, "-m", "hpctl", "cluster", "init"], answers)
    assert code == 0, said
    spec = read(here / "cluster.yaml")
    assert spec.groups[-1].types == ("ml.p5.48xlarge", "ml.p5en.48xlarge")
    assert spec.vpc is not None
    assert spec.groups[0].lifecycle is None


def typed(command: list[str], answers: list[tuple[bytes, bytes]]) -> tuple[str, int]:
    """Run a command on a terminal and answer its questions. Bounded."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(FILES.parents[2])}
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    said, until = b"", time.monotonic() + 60
    try:
        for question, answer in answers:
            begun = len(said)
            while question not in said[begun:]:
                assert time.monotonic() < until, said.decode()
                if select.select([ours], [], [], 0.5)[0]:
                    said += os.read(ours, 4096)
            os.write(ours, answer + b"\n")
        code = process.wait(timeout=60)
    finally:
        process.kill()
        process.wait(timeout=10)
        os.close(ours)
    return said.decode(), code


def test_the_parameters_are_printed_or_written_beside_the_scripts(here: Path) -> None:
    source = str(FILES / "provisioning.yaml")
    rendered = provisioning.render(files()["provisioning"])
    for words in ((), ("--json",), ("-o", "p.json", "--json")):
        assert json.loads(run("provisioning-parameters", source, *words).stdout) == rendered
    assert json.loads(Path("p.json").read_text()) == rendered
    assert run("provisioning-parameters", source, "-o", "p.json").exit_code == 1
    refused = run("provisioning-parameters", str(FILES / "full.yaml"))
    assert refused.exit_code == 1
    assert "needs no provisioning_parameters.json" in str(refused.exception)


def test_the_example_of_the_documentation_is_a_spec() -> None:
    page = (FILES.parents[2] / "docs" / "cluster.md").read_text()
    spec = parse(page.partition("```yaml\n")[2].partition("```")[0])
    assert complaints(create_request(spec)) == ""


def test_the_schema_is_the_published_one() -> None:
    published = FILES.parents[2] / "docs" / "cluster.schema.json"
    for words in (("schema",), ("schema", "--json")):
        assert run(*words).stdout == published.read_text()


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    made = Emulator(NullMachines(), boot_time_s=0.0)
    made.start()
    for spec in files().values():
        request = create_request(spec)
        for group in request["InstanceGroups"]:
            group.pop("ImageReleaseVersion", None)
            group.pop("TrainingPlanArn", None)
        made.create(request)
        made.wait_in_service(spec.name, 20)
    yield made
    made.stop()
    assert made.response_errors == []


@pytest.fixture
def aws(emulator: Emulator, monkeypatch: pytest.MonkeyPatch, here: Path) -> tuple[str, ...]:
    for key, value in SANDBOX_KEYS.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    return ("--region", "us-west-2", "--endpoint-url", emulator.endpoint_url)


def test_a_living_cluster_becomes_a_file(aws: tuple[str, ...]) -> None:
    result = run("import", "llm-prod", "-o", "cluster.yaml", *aws)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("cluster.yaml says what llm-prod is: head, login, h100, spot")
    text = Path("cluster.yaml").read_text()
    compare("cluster-import.yaml", re.sub(r"ami-[0-9a-f]+", "ami-0", text))
    made, spec = files()["full"], read("cluster.yaml")
    assert spec.tags == made.tags
    assert [g.storage for g in spec.groups] == [g.storage for g in made.groups]
    again = run("import", "llm-prod", "-o", "cluster.yaml", *aws)
    assert again.exit_code == 1
    assert run("import", "llm-prod", "-o", "cluster.yaml", "--force", *aws).exit_code == 0


def test_an_imported_file_is_what_is_printed_and_changes_nothing(aws: tuple[str, ...]) -> None:
    assert run("import", "llm-next", "-o", "next.yaml", *aws).exit_code == 0
    said = json.loads(run("update", "next.yaml", "--dry-run", "--json", *aws).stdout)
    assert said["changes"] == []
    printed = run("import", "llm-next", *aws).stdout
    assert parse(printed).node_provisioning_mode == "Continuous"
    said = json.loads(run("import", "llm-next", "--json", *aws).stdout)
    assert said["schema"] == "hpctl.cluster-import/1"
    assert (said["path"], said["groups"], said["yaml"]) == ("", ["head", "h100"], printed)


def test_a_request_becomes_a_file_with_no_account_at_all(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpctl.cli.cluster.file.open_aws", None)
    for name, spec in files().items():
        request = create_request(spec)
        Path("r.json").write_text(json.dumps(request, default=str))
        result = run("import", "--from-json", "r.json", "-o", "c.yaml", "--force")
        assert result.exit_code == 0, result.output
        assert create_request(read("c.yaml")) == request
        untold = "The request does not tell the groups' roles" in result.stdout
        assert untold is (name == "provisioning")
    text = json.dumps(create_request(files()["full"]), default=str)
    piped = run("import", "--from-json", "-", stdin=text)
    compare("cluster-import-json.yaml", piped.stdout)


def test_a_request_is_named_or_a_cluster(here: Path) -> None:
    assert run("import").exit_code == 2
    Path("r.json").write_bytes(b"\xff")
    assert run("import", "llm-prod", "--from-json", "r.json").exit_code == 2
    broken = run("import", "--from-json", "r.json")
    assert broken.exit_code == 1
    assert "r.json cannot be read" in str(broken.exception)
    missing = run("import", "--from-json", "none.json")
    assert (missing.exit_code, "none.json" in str(missing.exception)) == (1, True)
