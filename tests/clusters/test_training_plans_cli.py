"""Buying over HTTP: the price is asked about, and nothing is bought twice whatever gets lost."""

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from hpctl.cli.main import cli
from hpctl.errors import HpctlError, InDoubt
from tests.clusters.bed import REGION, AwsBed

SEARCH = ("--type", "ml.p5.48xlarge", "--count", "16", "--duration", "7d")


class Buyer:
    """Somebody with a shell, beside an emulator whose plans are forgotten between tests."""

    def __init__(self, bed: AwsBed) -> None:
        self.bed = bed
        self.plans = bed.emulator.training_plans

    def run(self, *args: str, stdin: str = "") -> Result:
        env = {"COLUMNS": "80", "AWS_DEFAULT_REGION": REGION}
        env["AWS_ENDPOINT_URL_SAGEMAKER"] = self.bed.emulator.endpoint_url
        return CliRunner(env=env).invoke(cli, ["capacity", *args], input=stdin, prog_name="hpctl")

    def offer(self, *args: str, at: int = 0) -> str:
        told = json.loads(self.run("offers", *(args or SEARCH), "--json").stdout)
        return str(told["offers"][at]["id"])

    def orders(self) -> list[str]:
        return [o for o in self.bed.operations() if o.startswith(("Create", "Extend"))]

    def names(self) -> list[str]:
        return [plan["TrainingPlanName"] for plan in self.plans.capacity.plans.values()]


@pytest.fixture
def buyer(bed: AwsBed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Buyer]:
    monkeypatch.setattr("hpctl.wiring.open_aws", lambda *_: bed.aws)
    monkeypatch.setattr("hpctl.cli.capacity.open_aws", lambda *_: bed.aws)
    monkeypatch.setattr("hpctl.cli.capacity.EVERY_S", 0.02)
    bed.forget_calls()
    yield Buyer(bed)
    plans = bed.emulator.training_plans
    plans.pay_s, plans.pays = 0.0, True
    for kept in (plans.offered, plans.extensions, plans.capacity.plans):
        kept.clear()


def test_nothing_is_bought_unless_somebody_agrees_to_the_price(buyer: Buyer) -> None:
    offer = buyer.offer()
    asked = buyer.run("buy", "p5", offer, *SEARCH, stdin="n\n")
    assert asked.exit_code == 1
    assert "Pay 107520.00 USD? It cannot be taken back. [y/N]" in asked.stderr
    assert "16 x ml.p5.48xlarge in us-west-2a" in asked.stderr
    assert buyer.run("buy", "p5", offer, *SEARCH, "--dry-run").exit_code == 0
    assert buyer.run("buy", "p5", offer, *SEARCH).exit_code == 1, "nobody is there to answer"
    assert buyer.orders() == []


def test_a_plan_is_paid_while_somebody_waits(buyer: Buyer) -> None:
    buyer.plans.pay_s = 0.1
    done = buyer.run("buy", "p5", buyer.offer(), *SEARCH, stdin="y\n")
    assert done.exit_code == 0
    assert "p5: Pending ...\n  p5: Scheduled ..." in done.stderr
    assert done.stdout.startswith("Training plan p5 is bought (Scheduled).")
    assert buyer.orders() == ["CreateTrainingPlan"]


def test_a_payment_that_fails_or_drags_on_is_no_success(buyer: Buyer) -> None:
    buyer.plans.pays = False
    failed = buyer.run("buy", "p5", buyer.offer(), *SEARCH, "--yes")
    assert (failed.exit_code, "the payment failed" in failed.stdout) == (1, True)
    buyer.plans.pay_s = 5.0
    slow = buyer.run("buy", "p6", buyer.offer(), *SEARCH, "--yes", "--timeout", "0.1s")
    assert (slow.exit_code, "payment still pending" in slow.stdout) == (3, True)
    left = buyer.run("buy", "p7", buyer.offer(), *SEARCH, "--yes", "--no-wait", "--json")
    assert (left.exit_code, json.loads(left.stdout)["outcome"]) == (0, "ordered")


def test_a_lost_answer_is_looked_for_and_the_order_not_repeated(buyer: Buyer) -> None:
    buyer.bed.emulator.faults.add("drop_reply", operations=["CreateTrainingPlan"], calls=1)
    done = buyer.run("buy", "p5", buyer.offer(), *SEARCH, "--yes")
    assert done.exit_code == 0, done.output
    assert (buyer.orders(), buyer.names()) == (["CreateTrainingPlan"], ["p5"])


def test_an_order_without_a_trace_is_in_doubt_and_not_sent_again(buyer: Buyer) -> None:
    buyer.bed.emulator.faults.add("internal_error", operations=["CreateTrainingPlan"], calls=1)
    offer = buyer.offer()
    doubt = buyer.run("buy", "p5", offer, *SEARCH, "--yes")
    assert isinstance(doubt.exception, InDoubt)
    assert "it is not sent again: it costs money" in str(doubt.exception)
    assert "hpctl capacity plans p5" in doubt.exception.hint
    assert buyer.orders() == ["CreateTrainingPlan"]
    assert buyer.run("buy", "p5", offer, *SEARCH, "--yes").exit_code == 0
    assert buyer.names() == ["p5"]


def test_the_same_command_again_buys_nothing(buyer: Buyer) -> None:
    offer, later = buyer.offer(), buyer.offer(at=1)
    buyer.run("buy", "p5", offer, *SEARCH, "--yes")
    again = buyer.run("buy", "p5", offer, *SEARCH, "--yes", "--json")
    assert (again.exit_code, json.loads(again.stdout)["outcome"]) == (0, "unchanged")
    for other in (("buy", "p5", later, *SEARCH), ("buy", "p5", offer, *SEARCH, "--count", "8")):
        refused = buyer.run(*other, "--yes")
        assert "another training plan has the name p5" in str(refused.exception)
    assert buyer.orders() == ["CreateTrainingPlan"]


def test_an_offer_that_is_gone_is_said_before_anything_is_sent(buyer: Buyer) -> None:
    gone = buyer.run("buy", "p5", "tpo-0", *SEARCH, "--yes")
    assert "is not among the 2 offers" in str(gone.exception)
    assert isinstance(gone.exception, HpctlError)
    assert "hpctl capacity offers" in gone.exception.hint
    assert buyer.orders() == []


def extension(buyer: Buyer) -> str:
    buyer.run("buy", "p5", buyer.offer(), *SEARCH, "--yes")
    buyer.bed.forget_calls()
    return buyer.offer("--plan", "p5")


def test_an_extension_is_bought_once_whatever_gets_lost(buyer: Buyer) -> None:
    offer = extension(buyer)
    buyer.bed.emulator.faults.add("drop_reply", operations=["ExtendTrainingPlan"], calls=1)
    done = buyer.run("extend", "p5", offer, stdin="y\n")
    assert done.exit_code == 0, done.output
    assert "Pay 15360.00 USD?" in done.stderr
    again = buyer.run("extend", "p5", offer, "--yes", "--json")
    assert json.loads(again.stdout)["outcome"] == "unchanged"
    assert buyer.orders() == ["ExtendTrainingPlan"]


def test_an_extension_whose_payment_failed_can_be_bought_again(buyer: Buyer) -> None:
    offer = extension(buyer)
    buyer.plans.pays = False
    assert buyer.run("extend", "p5", offer, "--yes").exit_code == 1
    buyer.plans.pays = True
    assert buyer.run("extend", "p5", offer, "--yes").exit_code == 0
    assert buyer.orders() == ["ExtendTrainingPlan"] * 2


def test_a_plan_that_cannot_be_extended_is_refused_before_the_call(buyer: Buyer) -> None:
    """SageMaker guide, "Training plans extension": prerequisites."""
    offer = extension(buyer)
    buyer.plans.pay_s = 60.0
    buyer.run("extend", "p5", offer, "--yes", "--no-wait")
    other = buyer.offer("--plan", "p5", at=1)
    refused = buyer.run("extend", "p5", other, "--yes")
    assert "the payment of an extension is pending" in str(refused.exception)
    [plan] = buyer.plans.capacity.plans.values()
    plan["Status"] = "Expired"
    assert "it is Expired" in str(buyer.run("extend", "p5", other, "--yes").exception)
    assert buyer.orders() == ["ExtendTrainingPlan"]


def test_a_history_that_cannot_be_read_stops_an_extension(buyer: Buyer) -> None:
    offer = extension(buyer)
    history = "DescribeTrainingPlanExtensionHistory"
    buyer.bed.emulator.faults.add("access_denied", operations=[history])
    refused = buyer.run("extend", "p5", offer, "--yes")
    assert "whether it was bought before is not known" in str(refused.exception)
    assert buyer.orders() == []
