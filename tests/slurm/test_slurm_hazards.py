"""Each rule of doctor's Slurm table: one setting that trips it, and one that does not."""

import pytest

from hpctl.slurm.hazards import Version, find_slurm_hazards

OLD, NEW, LATEST = (22, 5, 8), (25, 11, 7), (26, 5, 4)

Settings = dict[str, str]
SLURMDBD = {"AccountingStorageType": "accounting_storage/slurmdbd"}
TRIPS: dict[str, tuple[str, Version, Settings, Settings]] = {
    "begin-delay of AuthInfo": (
        "warn", OLD, {"AuthInfo": "socket=/m,cred_expire=600"}, {"AuthInfo": ""}),
    "begin-delay of SchedulerParameters": (
        "warn", NEW, {"SchedulerParameters": "requeue_delay=300", "AuthInfo": "cred_expire=60"},
        {"SchedulerParameters": "requeue_delay=30", "AuthInfo": "cred_expire=600"}),
    "batch-sched-delay": (
        "note", OLD, {"SchedulerParameters": "(null)"},
        {"SchedulerParameters": "defer,batch_sched_delay=0"}),
    "slurmd-timeout": ("warn", OLD, {"SlurmdTimeout": "900 sec"}, {"SlurmdTimeout": "300 sec"}),
    "unkillable-step": (
        "warn", OLD, {"UnkillableStepTimeout": "60 sec", "MessageTimeout": "60 sec"},
        {"UnkillableStepTimeout": "60 sec", "MessageTimeout": "10 sec"}),
    "expedited-requeue": (
        "warn", (25, 11, 2), {"SlurmctldParameters": "enable_expedited_requeue"},
        {"SlurmctldParameters": "rl_enable"}),
    "expedited-requeue that holds": (
        "note", LATEST, {"SlurmctldParameters": "enable_expedited_requeue"},
        {"SlurmctldParameters": "(null)"}),
    "requeue-exit": ("fail", OLD, {"RequeueExit": "1,90-95"}, {"RequeueExit": "1-9"}),
    "prolog-hold": (
        "warn", OLD, {"Prolog": "/etc/slurm/prolog.sh", "SchedulerParameters": "defer"},
        {"Prolog": "/etc/slurm/prolog.sh", "SchedulerParameters": "nohold_on_prolog_fail"}),
    "prolog-hold of several": ("warn", LATEST, {"Prolog[0]": "/a"}, {"Prolog": ""}),
    "prolog-cancels": (
        "note", NEW, {"Prolog": "/a", "PrologFlags": "Alloc"},
        {"Prolog": "/a", "PrologFlags": "Alloc,ForceRequeueOnFail"}),
    "health-check that is not set": (
        "note", OLD, {"HealthCheckProgram": "(null)"},
        {"HealthCheckProgram": "/a", "HealthCheckInterval": "0 sec"}),
    "health-check that never runs": (
        "warn", OLD, {"HealthCheckProgram": "/a", "HealthCheckInterval": "0 sec"},
        {"HealthCheckProgram": "/a", "HealthCheckInterval": "60 sec"}),
    "health-check at the start": (
        "warn", LATEST, {"HealthCheckProgram": "/a", "HealthCheckNodeState": "ANY"},
        {"HealthCheckProgram": "/a", "HealthCheckNodeState": "START_ONLY"}),
    "health-check of the site": (
        "note", OLD, {"HealthCheckProgram": "/a", "HealthCheckInterval": "60 sec"},
        {"HealthCheckProgram": "/a"}),
    "accounting-store-flags": (
        "note", OLD, SLURMDBD, {**SLURMDBD, "AccountingStoreFlags": "job_script,job_comment"}),
}  # fmt: skip
"""Of each way to read a setting, one."""


@pytest.mark.parametrize("name", TRIPS)
def test_a_rule_trips_on_the_bad_setting_and_not_on_the_good_one(name):
    rule, (severity, version, bad, good) = name.partition(" ")[0], TRIPS[name]
    assert [h.severity for h in find_slurm_hazards(version, bad) if h.rule == rule] == [severity]
    assert severity not in [h.severity for h in find_slurm_hazards(version, good) if h.rule == rule]


def test_the_completing_hazard_ends_with_26_05_4():
    def rules(version: Version) -> set[str]:
        return {h.rule for h in find_slurm_hazards(version, {})}

    assert "requeue-completing" in rules((26, 5, 3))
    assert "requeue-completing" not in rules(LATEST)
    assert "crash" in next(
        h.what for h in find_slurm_hazards(NEW, {}) if h.rule == "requeue-completing"
    )


def test_slurms_defaults_have_no_failure():
    assert not [h for h in find_slurm_hazards(LATEST, {}) if h.severity in ("fail", "warn")]


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
def test_topology_files_that_are_missing_or_empty(version, config, files, rules):
    found = {
        h.rule for h in find_slurm_hazards(version, config, files) if h.rule.startswith("topology-")
    }
    assert found == rules


@pytest.mark.parametrize(
    ("program", "hint"),
    [
        ("/opt/hpctl/slurm/health_check.sh", "drains nothing"),
        ("/usr/sbin/nhc", "have it run /opt/hpctl/slurm/health_check.sh"),
        ("/srv/hpctl/slurm/health_check.sh.old", "it is the site's own"),
    ],
)
def test_doctor_names_the_health_check_and_its_interval(program, hint):
    config = {"HealthCheckProgram": program, "HealthCheckInterval": "60 sec"}
    (found,) = (h for h in find_slurm_hazards(OLD, config) if h.rule == "health-check")
    assert found.what == f"HealthCheckProgram={program}, every 60 s"
    assert hint in found.hint
