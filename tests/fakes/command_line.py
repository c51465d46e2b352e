"""A head node on paper: a real journal file and configuration; Slurm and the cloud are values."""

from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from click.testing import CliRunner, Result
from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.cli.main import cli
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import JournalStore
from hpctl.toolkit import output
from hpctl.toolkit.errors import ResourceNotFound, ServiceUnavailable
from hpctl.vocabulary.cloud_facts import CloudProviderView, InstanceGroup
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmReservation
from hpctl.vocabulary.spares_reservation import RESERVATION
from tests.cli import worlds
from tests.cli.paper_aws import GROUP, PaperAws, PaperSageMaker
from tests.clusters.paper_slurm import PaperSlurm
from tests.clusters.validate import world

CLI = Path(__file__).parents[1] / "cli"
"""Where the tests of commands keep their files."""


def run(*args, width=80, stdin="", env=None):
    """Run hpctl as from the shell, on a terminal so wide."""
    runner = CliRunner(env={"COLUMNS": str(width), **(env or {})})
    return runner.invoke(cli, [*map(str, args)], input=stdin, prog_name="hpctl")


class Reads(Struct):
    """A scheduler or provider that answers one view, or cannot."""

    answer: SchedulerView | CloudProviderView | None

    def view(self) -> SchedulerView | CloudProviderView:
        if self.answer is None:
            raise ServiceUnavailable("it does not answer", "look at its log")
        return self.answer

    def update(self, nodes, state, rule):
        """Slurm as an order of `hpctl cluster` changes it."""
        paper = PaperSlurm([])
        paper.nodes = dict(self.answer.nodes)
        answers = paper.update(nodes, state, rule)
        self.answer = replace(self.answer, nodes=paper.nodes)
        return answers

    def version(self) -> tuple[int, int, int]:
        raise ServiceUnavailable("it does not answer", "look at its log")

    show_config = version

    def reservations(self) -> dict[str, SlurmReservation]:
        self.view()
        name = f"{RESERVATION}worker-group-1"
        return {name: SlurmReservation(name, ("ip-10-1-0-2",))}


class Head(Struct):
    """What a test may change before it runs a command."""

    dir: Path
    config: Path
    slurm: SchedulerView | None = field(default_factory=worlds.slurm)
    cloud: CloudProviderView | None = field(default_factory=worlds.cloud)
    aws: PaperAws = field(default_factory=PaperAws)

    def store(self) -> JournalStore:
        return JournalStore(f"sqlite:///{self.dir / 'journal.db'}")

    def write(self, *events):
        """Append to the journal, and put the agents' facts and the daemon's lease there."""
        store = self.store()
        store.append([e for some in events for e in some])
        store.record(list(worlds.health().values()))
        me = DaemonIdentity("head-1", 4711, "0.1.0", "own", "head-1:8470")
        store.take_lease(me, store.daemon(), worlds.at(-600), 30.0)
        store.renew_lease(worlds.at(89.5), 30.0, 0.012, "", "own")
        store.close()

    def run(self, *args: str, width: int = 80, stdin: str | IO[bytes] = "") -> Result:
        """Run hpctl as from the shell, on a terminal so wide."""
        return run(*args, width=width, stdin=stdin, env={"HPCTL_CONFIG": str(self.config)})


@pytest.fixture
def head(tmp_path, monkeypatch) -> Head:
    config = tmp_path / "hpctl.yaml"
    config.write_text(
        f"mode: own\nstate_dir: {tmp_path}\nkill_switch: {tmp_path}/STOP\n"
        "intake: {listen: '127.0.0.1:1'}\n"
        "cluster: {provider: sagemaker, name: llm-prod, region: us-west-2}\n"
    )
    made = Head(tmp_path, config)
    monkeypatch.setattr(
        "hpctl.engine.adapters.make_slurm_command_client", lambda _: Reads(made.slurm)
    )
    monkeypatch.setattr(
        "hpctl.engine.adapters.choose_slurm_client_for_daemon", lambda _: (Reads(made.slurm), "cli")
    )
    monkeypatch.setattr("hpctl.engine.adapters.make_cloud_provider", lambda _: Reads(made.cloud))
    monkeypatch.setattr("hpctl.engine.adapters.make_aws_account_client", lambda *_: made.aws)
    monkeypatch.setattr("hpctl.clusters.commands.maintenance.EVERY_S", 0.0)
    monkeypatch.setattr(output, "get_current_utc_time", lambda: worlds.NOW)
    for name in ("SUDO_USER", "HPCTL_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SAGEMAKER_RESOURCE_CONFIG_PATH", "/nonexistent")
    monkeypatch.setattr("hpctl.clusters.commands.node_orders.find_invoking_user", lambda: "ana")
    return made


@pytest.fixture
def history(head: Head) -> Head:
    """The head node with everything of `worlds` in its journal."""
    head.write(worlds.healed(), worlds.troubled(), worlds.changes())
    return head


AUTOSCALE = """
autoscale:
  enabled: true
  hours_per_day: 100
  groups:
    worker-group-1: {min_count: 2, max_count: 12, partition: gpu}
    spot: {min_count: 0, max_count: 4, partition: spot}
spares: {worker-group-1: 1}
"""


@pytest.fixture
def planned(history: Head) -> Head:
    """The same cluster on a training plan, autoscaled, with two jobs that wait."""
    history.aws.sagemaker = aws = PaperSageMaker("plan.yaml")
    plan = aws.answers["describe_training_plan"]["TrainingPlanArn"]
    aws.answers["describe_cluster"]["InstanceGroups"][1]["TrainingPlanArn"] = plan
    history.config.write_text(history.config.read_text() + AUTOSCALE)
    assert history.slurm is not None
    assert history.cloud is not None
    waits = SlurmJob(
        4600, "PENDING", worlds.at(-600), name="eval", user="ana", partition="gpu",
        reason="Resources", eligible=worlds.at(-600), wants=4,
    )  # fmt: skip
    young = replace(waits, id=4601, wants=1, partition="spot", eligible=worlds.at(60))
    jobs = {**history.slurm.jobs, waits.id: waits, young.id: young}
    history.slurm = replace(history.slurm, jobs=jobs)
    groups = {
        GROUP: InstanceGroup(GROUP, "ml.p5.48xlarge", 7, 7, "InService"),
        "spot": InstanceGroup("spot", "ml.g5.12xlarge", 0, 0, "InService"),
    }
    history.cloud = replace(history.cloud, groups=groups, continuous=True)
    return history


@pytest.fixture
def sold(head: Head) -> Head:
    """A training plan of UltraServers that was extended."""
    head.aws.sagemaker = PaperSageMaker("sold.yaml")
    return head


class Account(dict[str, dict[str, Any]]):
    """`ports.AwsClientFactory` from a table: service -> operation -> answer. Of the rest nobody
    answers."""

    region = "us-east-1"
    run = staticmethod(run)

    def service(self, name: str):
        def read(operation: str, **request):
            if operation not in self.get(name, {}):
                raise ServiceUnavailable(f"{name}:{operation}: no answer", "check the network")
            found = self[name][operation]
            if found is None:
                raise ResourceNotFound(f"{name}:{operation}: not found", code="ResourceNotFound")
            return found(request) if callable(found) else found

        return SimpleNamespace(read=read, pages=lambda operation, key, **of: read(operation, **of))


def simulated(*denied: str):
    def results(request) -> list[dict[str, Any]]:
        return [
            {
                "EvalActionName": action,
                "EvalDecision": "implicitDeny" if action in denied else "allowed",
                "EvalResourceName": request["ResourceArns"][0],
            }
            for action in request["ActionNames"]
        ]

    return results


@pytest.fixture
def account(monkeypatch) -> Account:
    """An account that fits the good world; test by test something is taken out."""
    network, quotas = world.ACCOUNT["network"], world.ACCOUNT["quota"]["limits"]
    listed = [{"QuotaName": name, "Value": value} for name, value in quotas.items()]
    role = {"Role": world.ACCOUNT["role"]["entry"]}
    nodes = network["security_groups"]["sg-nodes"]
    nodes = {**nodes, "IpPermissions": [], "IpPermissionsEgress": nodes["IpPermissionsEgress"][1:]}
    dns = {"EnableDnsSupport": {"Value": True}, "EnableDnsHostnames": {"Value": True}}
    found = Account(
        {
            "sagemaker": {"describe_cluster": None, "list_clusters": []},
            "ec2": {
                "describe_subnets": list(network["subnets"].values()),
                "describe_security_groups": [nodes],
                "describe_route_tables": list(network["route_tables"].values()),
                "describe_vpc_endpoints": [], "describe_vpc_attribute": dns,
                "describe_instance_types": [], "describe_instance_type_offerings": [],
            },
            "iam": {"get_role": role, "simulate_principal_policy": simulated("s3:GetObject")},
            "fsx": {"describe_file_systems": []},
            "service-quotas": {
                "list_aws_default_service_quotas": [], "list_service_quotas": listed,
            },
        }
    )  # fmt: skip
    monkeypatch.setattr("hpctl.engine.adapters.make_aws_account_client", lambda *_: found)
    monkeypatch.chdir(CLI / "validate")
    return found


@pytest.fixture
def policies(monkeypatch) -> SimpleNamespace:
    monkeypatch.chdir(CLI / "policy")
    return SimpleNamespace(run=run)
