"""Buying over HTTP: the price is asked about, and nothing is bought twice whatever gets lost."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hpctl.cli.main import cli
from hpctl.core.compat import UTC
from hpctl.errors import HpctlError, InDoubt
from tests.clusters.bed import REGION, AwsBed

SEARCH = ("--type", "ml.p5.48xlarge", "--count", "16", "--duration", "7d")
ARN = f"arn:aws:sagemaker:{REGION}:000000000000"
START = datetime(2100, 1, 1, 11, 30, tzinfo=UTC)
Body = dict[str, Any]


class Seller:
    """SageMaker's offers, and its plans: a payment ends after `looks` looks, well if `pays`."""

    def __init__(self, bed: AwsBed) -> None:
        self.capacity, self.looks, self.pays = bed.emulator.capacity, 0, True
        self.extensions: list[Body] = []
        bed.emulator.handlers |= {
            "SearchTrainingPlanOfferings": self.search,
            "CreateTrainingPlan": self.create,
            "ExtendTrainingPlan": self.extend,
            "ListTrainingPlans": lambda _: {"TrainingPlanSummaries": []},
            "DescribeTrainingPlan": self.describe,
            "DescribeTrainingPlanExtensionHistory": self.history,
        }

    def search(self, request: Body) -> Body:
        if "TrainingPlanArn" in request:
            price = {"UpfrontFee": "15360.00", "CurrencyCode": "USD", "DurationHours": 24}
            offers = [{"TrainingPlanExtensionOfferingId": f"tpeo-{n}", **price} for n in "12"]
            return {"TrainingPlanOfferings": [], "TrainingPlanExtensionOfferings": offers}
        return {"TrainingPlanOfferings": [self.offer(n, request["InstanceCount"]) for n in (1, 8)]}

    def offer(self, days: int, count: int) -> Body:
        start = START + timedelta(days)
        part = {
            "InstanceType": "ml.p5.48xlarge",
            "InstanceCount": count,
            "AvailabilityZone": "us-west-2a",
            "StartTime": start,
            "EndTime": start + timedelta(days=7),
        }
        return {
            "TrainingPlanOfferingId": f"tpo-{days}",
            "TargetResources": ["hyperpod-cluster"],
            "UpfrontFee": "107520.00",
            "CurrencyCode": "USD",
            "DurationHours": 168,
            "ReservedCapacityOfferings": [part],
        }

    def create(self, request: Body) -> Body:
        days = int(request["TrainingPlanOfferingId"].removeprefix("tpo-"))
        part = self.offer(days, 16)["ReservedCapacityOfferings"][0]
        part["TotalInstanceCount"] = part.pop("InstanceCount")
        part |= {"ReservedCapacityArn": f"{ARN}:reserved-capacity/p5", "Status": "Pending"}
        name, start = request["TrainingPlanName"], part["StartTime"]
        parts = {"ReservedCapacitySummaries": [part]}
        arn = self.capacity.add_plan(name, Status="Pending", StartTime=start, **parts)
        return {"TrainingPlanArn": arn}

    def extend(self, request: Body) -> Body:
        offer = request["TrainingPlanExtensionOfferingId"]
        states = {"Status": "Pending", "PaymentStatus": "Pending"}
        self.extensions.append({"TrainingPlanExtensionOfferingId": offer, **states})
        return {"TrainingPlanExtensions": self.extensions}

    def describe(self, request: Body) -> Body:
        answer = self.capacity.describe_plan(request)
        self.look(self.capacity.plans[answer["TrainingPlanArn"]])
        return answer

    def history(self, _request: Body) -> Body:
        answer = [dict(one) for one in self.extensions]
        for one in self.extensions:
            self.look(one)
        return {"TrainingPlanExtensions": answer}

    def look(self, order: Body) -> None:
        self.looks -= 1
        if self.looks < 1 and order["Status"] == "Pending":
            order["Status"] = "Scheduled" if self.pays else "Failed"
            if "PaymentStatus" in order:
                order["PaymentStatus"] = "Completed" if self.pays else "Failed"


class Buyer:
    """Somebody with a shell, beside an emulator whose plans are forgotten between tests."""

    def __init__(self, bed: AwsBed) -> None:
        self.bed = bed
        self.plans = Seller(bed)

    def run(self, *args: str, stdin: str = "") -> Result:
        env = {"COLUMNS": "80", "AWS_DEFAULT_REGION": REGION}
        env["AWS_ENDPOINT_URL_SAGEMAKER"] = self.bed.emulator.endpoint_url
        return CliRunner(env=env).invoke(cli, ["capacity", *args], input=stdin, prog_name="hpctl")

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
    handlers = dict(bed.emulator.handlers)
    yield Buyer(bed)
    bed.emulator.handlers = handlers
    bed.emulator.capacity.plans.clear()


OFFER, LATER = "tpo-1", "tpo-8"


def test_nothing_is_bought_unless_somebody_agrees_to_the_price(buyer: Buyer) -> None:
    asked = buyer.run("buy", "p5", OFFER, *SEARCH, stdin="n\n")
    assert asked.exit_code == 1
    assert "Pay 107520.00 USD? It cannot be taken back. [y/N]" in asked.stderr
    assert "16 x ml.p5.48xlarge in us-west-2a" in asked.stderr
    assert buyer.run("buy", "p5", OFFER, *SEARCH, "--dry-run").exit_code == 0
    assert buyer.run("buy", "p5", OFFER, *SEARCH).exit_code == 1, "nobody is there to answer"
    assert buyer.orders() == []


def test_a_plan_is_paid_while_somebody_waits(buyer: Buyer) -> None:
    buyer.plans.looks = 3
    done = buyer.run("buy", "p5", OFFER, *SEARCH, stdin="y\n")
    assert done.exit_code == 0
    assert "p5: Pending ...\n  p5: Scheduled ..." in done.stderr
    assert done.stdout.startswith("Training plan p5 is bought (Scheduled).")
    assert buyer.orders() == ["CreateTrainingPlan"]


def test_a_payment_that_fails_or_drags_on_is_no_success(buyer: Buyer) -> None:
    buyer.plans.pays = False
    failed = buyer.run("buy", "p5", OFFER, *SEARCH, "--yes")
    assert (failed.exit_code, "the payment failed" in failed.stdout) == (1, True)
    buyer.plans.looks = 99
    slow = buyer.run("buy", "p6", OFFER, *SEARCH, "--yes", "--timeout", "0.1s")
    assert (slow.exit_code, "payment still pending" in slow.stdout) == (3, True)
    left = buyer.run("buy", "p7", OFFER, *SEARCH, "--yes", "--no-wait", "--json")
    assert (left.exit_code, json.loads(left.stdout)["outcome"]) == (0, "ordered")


def test_a_lost_answer_is_looked_for_and_the_order_not_repeated(buyer: Buyer) -> None:
    buyer.bed.emulator.faults.add("drop_reply", operations=["CreateTrainingPlan"], calls=1)
    done = buyer.run("buy", "p5", OFFER, *SEARCH, "--yes")
    assert done.exit_code == 0, done.output
    assert (buyer.orders(), buyer.names()) == (["CreateTrainingPlan"], ["p5"])


def test_an_order_without_a_trace_is_in_doubt_and_not_sent_again(buyer: Buyer) -> None:
    buyer.bed.emulator.faults.add("internal_error", operations=["CreateTrainingPlan"], calls=1)
    doubt = buyer.run("buy", "p5", OFFER, *SEARCH, "--yes")
    assert isinstance(doubt.exception, InDoubt)
    assert "it is not sent again: it costs money" in str(doubt.exception)
    assert "hpctl capacity plans p5" in doubt.exception.hint
    assert buyer.orders() == ["CreateTrainingPlan"]
    assert buyer.run("buy", "p5", OFFER, *SEARCH, "--yes").exit_code == 0
    assert buyer.names() == ["p5"]


def test_the_same_command_again_buys_nothing(buyer: Buyer) -> None:
    buyer.run("buy", "p5", OFFER, *SEARCH, "--yes")
    again = buyer.run("buy", "p5", OFFER, *SEARCH, "--yes", "--json")
    assert (again.exit_code, json.loads(again.stdout)["outcome"]) == (0, "unchanged")
    for other in (("buy", "p5", LATER, *SEARCH), ("buy", "p5", OFFER, *SEARCH, "--count", "8")):
        refused = buyer.run(*other, "--yes")
        assert "another training plan has the name p5" in str(refused.exception)
    assert buyer.orders() == ["CreateTrainingPlan"]


def test_an_offer_that_is_gone_is_said_before_anything_is_sent(buyer: Buyer) -> None:
    gone = buyer.run("buy", "p5", "tpo-0", *SEARCH, "--yes")
    assert "is not among the 2 offers" in str(gone.exception)
    assert isinstance(gone.exception, HpctlError)
    assert "hpctl capacity offers" in gone.exception.hint
    assert buyer.orders() == []


@pytest.fixture
def extends(buyer: Buyer) -> Buyer:
    buyer.run("buy", "p5", OFFER, *SEARCH, "--yes")
    buyer.bed.forget_calls()
    return buyer


def test_an_extension_is_bought_once_whatever_gets_lost(extends: Buyer) -> None:
    extends.bed.emulator.faults.add("drop_reply", operations=["ExtendTrainingPlan"], calls=1)
    done = extends.run("extend", "p5", "tpeo-1", stdin="y\n")
    assert done.exit_code == 0, done.output
    assert "Pay 15360.00 USD?" in done.stderr
    again = extends.run("extend", "p5", "tpeo-1", "--yes", "--json")
    assert json.loads(again.stdout)["outcome"] == "unchanged"
    assert extends.orders() == ["ExtendTrainingPlan"]


def test_an_extension_whose_payment_failed_can_be_bought_again(extends: Buyer) -> None:
    extends.plans.pays = False
    assert extends.run("extend", "p5", "tpeo-1", "--yes").exit_code == 1
    extends.plans.pays = True
    assert extends.run("extend", "p5", "tpeo-1", "--yes").exit_code == 0
    assert extends.orders() == ["ExtendTrainingPlan"] * 2


def test_a_plan_that_cannot_be_extended_is_refused_before_the_call(extends: Buyer) -> None:
    """SageMaker guide, "Training plans extension": prerequisites."""
    extends.plans.looks = 99
    extends.run("extend", "p5", "tpeo-1", "--yes", "--no-wait")
    refused = extends.run("extend", "p5", "tpeo-2", "--yes")
    assert "the payment of an extension is pending" in str(refused.exception)
    [plan] = extends.plans.capacity.plans.values()
    plan["Status"] = "Expired"
    assert "it is Expired" in str(extends.run("extend", "p5", "tpeo-2", "--yes").exception)
    assert extends.orders() == ["ExtendTrainingPlan"]


def test_a_history_that_cannot_be_read_stops_an_extension(extends: Buyer) -> None:
    history = "DescribeTrainingPlanExtensionHistory"
    extends.bed.emulator.faults.add("access_denied", operations=[history])
    refused = extends.run("extend", "p5", "tpeo-1", "--yes")
    assert "whether it was bought before is not known" in str(refused.exception)
    assert extends.orders() == []
