"""The texts under which Slurm's own programs close a node, as its sources write them."""

import pytest

from hpctl.faults.reachability import find_node_unreachable_symptom, is_intentionally_unreachable
from hpctl.faults.slurm_reasons import (
    find_drained_node_fault_row,
    find_slurm_reason_fault_row,
    is_node_drained_by_slurm,
    list_drained_node_fault_rows,
    list_drained_node_fault_rules,
    list_slurm_reason_fault_rows,
)
from hpctl.vocabulary.slurm_facts import SlurmNode

WRITTEN = [
    ("Kill task failed", "unkillable"),  # slurmstepd 22.05
    ("Kill task failed (JobId=7 StepId=0)", "unkillable"),  # slurmstepd 25.05
    ("Duplicate jobid", "duplicate"),
    ("SlurmdSpoolDir is full", "spool"),
    ("Prolog error", "prolog"),
    ("Prolog/Epilog failure", "prolog"),
    ("Epilog error", "epilog"),
    ("NHC: check_fs_mount:  /fsx not mounted", "health"),
    ("[node_problem] gpu_health_check: ecc [hc_program]", "soperator"),
    ("[hardware_problem] gpu_health_check: gone", "soperator"),
    ("[compute_maintenance] node replacement process", "soperator"),
    ("[user_problem] alloc_gpus_busy [epilog]", "soperator-job"),
    ("batch job complete failure", "launch"),
    ("Job env setup error", "launch"),
    ("Job step not running (JobId=7 StepId=0)", "launch"),
    ("gres/gpu count reported lower than configured (7 < 8)", "gres"),
    ("gres/gpu count too low (7 < 8)", "gres"),
    ("gres/gpu:h100 count too low (7 < 8)", "gres"),
    ("gres/gpu count changed and jobs are using them (8 != 7)", "gres"),
    ("gres/gpu type (a100) reported but not configured", "gres"),
    ("Invalid GRES Links value (x) on node n1: end_ptr[0]='x' != ','", "gres"),
    ("Could not unpack gres data", "gres"),
    ("Low RealMemory (reported:900 < 100.00% of configured:1000)", "memory"),
    ("Low socket*core*thread count, Low CPUs", "cpus"),
    ("Low CPUs", "cpus"),
    ("CoreSpec differ", "cpus"),
    ("Bad core count", "cpus"),
    ("RestrictedCoresPerGPU=2 but no gpus on node n1", "cpus"),
    ("Low TmpDisk", "disk"),
    ("Reported active features (a) are not a superset of currently active", "features"),
    ("switch_g_job_postfini failed", "plugin"),
    ("Cannot collect energy data.", "plugin"),
    ("NO NETWORK ADDRESS FOUND", "address"),
    ("reboot timed out", "boot"),
    ("new kernel, Ann : reboot issued : reboot timed out", "boot"),
    ("Not responding", "down"),
    ("ResumeTimeout reached", "down"),
    ("Node unexpectedly rebooted", "rebooted"),
    ("Prolog error : Not responding", "prolog"),
]
OTHERS = [
    "see [node_problem], Ann",
    "[other_problem] gpu_health_check",
    "bad fan, Ann",
    "no Prolog error",
    "broken : Prolog error",
    "hpctl:n-1 GPU fell off the bus : Low RealMemory",
    "Low priority, Ann",
    "reboot issued",
    "kernel : Not responding",
    "NHCs are down",
    "",
]


def drained(reason: str, by: str = "") -> SlurmNode:
    return SlurmNode("n1", "IDLE", frozenset({"DRAIN"}), reason, reason_by=by)


@pytest.mark.parametrize(("reason", "code"), WRITTEN)
def test_each_text_of_slurm_has_its_row(reason, code):
    row = find_slurm_reason_fault_row(drained(reason))
    assert row is not None
    assert row.code == code


@pytest.mark.parametrize(
    ("reason", "code"), [w for w in WRITTEN if w[1] not in ("down", "rebooted")]
)
def test_what_slurm_closed_is_a_sign_of_its_row(reason, code):
    for node in (drained(reason), SlurmNode("n1", "DOWN", frozenset(), reason)):
        assert find_node_unreachable_symptom(node) == f"slurm.{code}"
        assert not is_intentionally_unreachable(node)
        assert find_drained_node_fault_row(node) in list_drained_node_fault_rows()
    assert is_node_drained_by_slurm(drained(reason))


@pytest.mark.parametrize("reason", OTHERS)
def test_every_other_text_is_a_persons(reason):
    assert find_slurm_reason_fault_row(drained(reason)) is None
    assert not is_node_drained_by_slurm(drained(reason))
    assert find_node_unreachable_symptom(drained(reason)) == ""


@pytest.mark.parametrize(("reason", "code"), WRITTEN)
def test_the_same_words_under_a_persons_account_are_a_persons(reason, code):
    node = drained(reason, by="ann")
    assert find_slurm_reason_fault_row(node) is None, code
    assert is_intentionally_unreachable(node)
    assert not is_node_drained_by_slurm(node)


def test_a_node_in_service_with_an_old_reason_is_no_closed_one():
    assert find_drained_node_fault_row(SlurmNode("n1", "IDLE", frozenset(), "Prolog error")) is None
    assert find_drained_node_fault_row(None) is None


def test_each_row_names_who_writes_it_where_and_what_a_person_does():
    for row in list_slurm_reason_fault_rows():
        assert row.by, row.code
        assert row.source, row.code
    for row in list_drained_node_fault_rows():
        assert row.advice, row.code
        assert row.treatment in ("A", "R1", "H"), row.code
    assert len(list_drained_node_fault_rules()) == len(list_drained_node_fault_rows())
