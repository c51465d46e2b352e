"""Each rule of doctor's Slurm table: one setting that trips it, and one that does not."""

import pytest

from hpctl.slurm.hazards import Version, hazards

OLD, NEW, LATEST = (22, 5, 8), (25, 11, 7), (26, 5, 4)

TRIPS: list[tuple[str, str, Version, dict[str, str], dict[str, str]]] = [
    ("begin-delay", "warn", OLD, {"AuthInfo": "socket=/m,cred_expire=600"}, {"AuthInfo": ""}),
    (
        "begin-delay",
        "warn",
        NEW,
        {"SchedulerParameters": "requeue_delay=300", "AuthInfo": "cred_expire=60"},
        {"SchedulerParameters": "requeue_delay=30", "AuthInfo": "cred_expire=600"},
    ),
    (
        "batch-sched-delay",
        "note",
        OLD,
        {"SchedulerParameters": "(null)"},
        {"SchedulerParameters": "defer,batch_sched_delay=0"},
    ),
    ("return-to-service", "note", OLD, {"ReturnToService": "2"}, {"ReturnToService": "1"}),
    ("slurmd-timeout", "warn", OLD, {"SlurmdTimeout": "900 sec"}, {"SlurmdTimeout": "300 sec"}),
    ("slurmd-timeout", "warn", OLD, {"SlurmdTimeout": "0 sec"}, {}),
    ("kill-wait", "warn", OLD, {"KillWait": "120 sec"}, {"KillWait": "30 sec"}),
    (
        "unkillable-step",
        "warn",
        OLD,
        {"UnkillableStepTimeout": "60 sec", "MessageTimeout": "60 sec"},
        {"UnkillableStepTimeout": "60 sec", "MessageTimeout": "10 sec"},
    ),
    ("unkillable-step", "warn", OLD, {"UnkillableStepTimeout": "3600 sec"}, {}),
    ("job-requeue", "fail", OLD, {"JobRequeue": "0"}, {"JobRequeue": "1"}),
    ("max-batch-requeue", "warn", NEW, {"MaxBatchRequeue": "1"}, {"MaxBatchRequeue": "5"}),
    (
        "rate-limit",
        "note",
        NEW,
        {"SlurmctldParameters": "a,rl_enable"},
        {"SlurmctldParameters": ""},
    ),
    (
        "job-expansion",
        "fail",
        NEW,
        {"SchedulerParameters": "permit_job_expansion"},
        {"SchedulerParameters": "(null)"},
    ),
    ("expedited-requeue", "note", NEW, {}, {"SlurmctldParameters": "enable_expedited_requeue"}),
    (
        "expedited-requeue",
        "warn",
        (25, 11, 2),
        {"SlurmctldParameters": "enable_expedited_requeue"},
        {"SlurmctldParameters": "rl_enable"},
    ),
    ("expedited-requeue", "note", OLD, {"SlurmctldParameters": "enable_expedited_requeue"}, {}),
    ("requeue-exit", "fail", OLD, {"RequeueExit": "1,90-95"}, {"RequeueExit": "1-9"}),
    ("requeue-exit", "fail", OLD, {"RequeueExitHold": "93"}, {"RequeueExitHold": ""}),
    (
        "accounting-store-flags",
        "note",
        OLD,
        {"AccountingStorageType": "accounting_storage/slurmdbd"},
        {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStoreFlags": "job_script,job_comment",
        },
    ),
    ("min-job-age", "warn", OLD, {"MinJobAge": "2 sec"}, {"MinJobAge": "300 sec"}),
    ("requeue-licenses", "warn", (25, 5, 3), {"Licenses": "matlab:5"}, {"Licenses": ""}),
]


@pytest.mark.parametrize(
    ("rule", "severity", "version", "bad", "good"),
    TRIPS,
    ids=[f"{t[0]}-{n}" for n, t in enumerate(TRIPS)],
)
def test_a_rule_trips_on_the_bad_setting_and_not_on_the_good_one(
    rule: str, severity: str, version: Version, bad: dict[str, str], good: dict[str, str]
) -> None:
    found = [h for h in hazards(version, bad) if h.rule == rule]
    assert [h.severity for h in found] == [severity]
    assert found[0].what
    assert found[0].mend
    assert found[0].source
    other = [h for h in hazards(version, good) if h.rule == rule]
    assert severity not in [h.severity for h in other]


def test_the_completing_hazard_ends_with_26_05_4() -> None:
    def rules(version: Version) -> set[str]:
        return {h.rule for h in hazards(version, {})}

    assert "requeue-completing" in rules((26, 5, 3))
    assert "requeue-completing" not in rules(LATEST)
    assert "crash" in next(h.what for h in hazards(NEW, {}) if h.rule == "requeue-completing")


def test_slurms_defaults_have_no_failure() -> None:
    assert not [h for h in hazards(LATEST, {}) if h.severity in ("fail", "warn")]


TREE = {"TopologyPlugin": "topology/tree"}


@pytest.mark.parametrize(
    ("version", "config", "files", "rules"),
    [
        (OLD, TREE, {}, {"topology-file"}),
        (OLD, TREE, {"topology.yaml": "- topology: a"}, {"topology-file"}),
        (OLD, TREE, {"topology.conf": "SwitchName=s0 Nodes=n1"}, set()),
        (OLD, {"TopologyPlugin": "topology/flat"}, {}, set()),
        (OLD, TREE, None, set()),
        (NEW, TREE, {"topology.yaml": "- topology: a"}, set()),
        (NEW, TREE, {"topology.yaml": "# by the agent\n---\n"}, {"topology-empty"}),
        (NEW, TREE, {}, {"topology-file"}),
    ],
)
def test_topology_files_that_are_missing_or_empty(
    version: Version, config: dict[str, str], files: dict[str, str] | None, rules: set[str]
) -> None:
    found = {h.rule for h in hazards(version, config, files) if h.rule.startswith("topology-")}
    assert found == rules
