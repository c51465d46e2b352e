"""What people and programs read, letter by letter. HPCTL_REGOLD=1 writes the files anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
TWO, NEW_PLAN = "ip-10-1-0-[1-2]", f"tpo-{'7' * 64}"
SEARCH = "--type ml.p5.48xlarge --count 16 --duration 7d"
CHECKED = "arn:aws:iam::111122223333:role/hyperpod"
COMMANDS = {
    "status": ("history", 1, "status"),
    "nodes": ("history", 0, "nodes"),
    "nodes-two": ("history", 0, "nodes ip-10-1-0-4 ip-10-1-0-10 --no-cloud"),
    "jobs": ("history", 0, "jobs"),
    "jobs-all": ("history", 0, "jobs --all"),
    "recoveries": ("history", 0, "recoveries"),
    "recoveries-since": ("history", 0, "recoveries --since 60s"),
    "lemons": ("history", 0, "lemons"),
    "lemons-all": ("history", 0, "lemons --all"),
    "explain-healed": ("history", 0, "explain n-11111111"),
    "explain-in-doubt": ("history", 0, "explain ip-10-1-0-4"),
    "explain-job": ("history", 0, "explain 4242"),
    "explain-trouble": ("history", 0, "explain 4545"),
    "explain-hold": ("history", 0, "explain ip-10-1-0-5"),
    "explain-foreign-drain": ("history", 0, "explain ip-10-1-0-7"),
    "cluster-list": ("history", 1, "cluster list"),
    "cluster-describe": ("history", 1, "cluster describe"),
    "cluster-nodes": ("history", 0, "cluster nodes"),
    "cluster-nodes-details": ("history", 0, "cluster nodes --details --state drain"),
    "cluster-events": ("history", 0, "cluster events"),
    "cluster-replace-dry": ("history", 0, "cluster replace ip-10-1-0-[2-3] --dry-run"),
    "cluster-replace-refused": (
        "history", 1, "cluster replace head-1 i-0fa11ed0000000010 ip-10-1-0-4",
    ),
    "cluster-replace": ("history", 1, f"cluster replace {TWO} --yes --no-wait --now --direct"),
    "cluster-delete-dry": ("history", 0, "cluster delete-nodes i-00000000000000003 --dry-run"),
    "cluster-software-update": ("history", 0, "cluster software-update --batch 10% --dry-run"),
    "cluster-health-check": ("history", 0, "cluster health-check ip-10-1-0-[2-3] --dry-run"),
    "capacity": ("planned", 1, "capacity"),
    "autoscale-status": ("planned", 0, "autoscale status"),
    "autoscale-explain": ("planned", 0, "autoscale explain"),
    "explain-change": ("planned", 0, "explain s-22222222"),
    "training-plan-offers": ("sold", 0, f"capacity offers {SEARCH}"),
    "training-plan-extensions": ("sold", 0, "capacity offers --plan gb200-in-may"),
    "training-plans": ("sold", 0, "capacity plans"),
    "training-plan": ("sold", 0, "capacity plans gb200-in-may"),
    "training-plan-buy": ("sold", 0, f"capacity buy new {NEW_PLAN} {SEARCH} --dry-run"),
    "training-plan-bought": ("sold", 0, "capacity extend gb200-in-may tpeo-1 --yes"),
    "cluster-extension-list": ("sold", 1, "cluster extension list"),
    "cluster-extension": ("sold", 1, "cluster extension describe sagemaker-observability"),
    "validate": ("account", 1, "cluster validate cluster.yaml"),
    "validate-verbose": ("account", 1, "cluster validate cluster.yaml --verbose --only network"),
    "validate-offline": ("account", 1, "cluster validate cluster.yaml --offline"),
    "validate-unreadable": ("account", 1, "cluster validate unreadable.yaml"),
    "iam-check": ("account", 1, f"iam check {CHECKED} --as execution-role"),
    "iam-head-node": ("account", 0, "iam head-node --account 111122223333"),
    "policy-test-defaults": ("policies", 0, "policy test --scenario story.yaml"),
    "policy-test-elastic": ("policies", 0, "policy test elastic.yaml --scenario shrinking.yaml"),
}  # fmt: skip


def compare(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("HPCTL_REGOLD"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("name", COMMANDS)
def test_text_and_json_are_as_before(request: pytest.FixtureRequest, name: str) -> None:
    fixture, code, line = COMMANDS[name]
    run = request.getfixturevalue(fixture).run
    result = run(*line.split())
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == code, result.output
    compare(f"{name}.txt", result.stdout)
    for line_ in result.stdout.splitlines():
        # An ARN is for copying into a file.
        assert len(line_) <= 80 or line_.startswith("training_plan: ")
        assert line_ == line_.rstrip()
        assert "\x1b" not in line_
    if "--dry-run" in line:
        assert result.stdout.endswith("\nDry run: nothing was done.\n")
    told = run(*line.split(), "--json").stdout
    assert next(iter(json.loads(told))) == "schema"
    compare(f"{name}.json", told)
