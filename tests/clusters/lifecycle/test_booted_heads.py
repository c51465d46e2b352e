"""Two controllers, born at once: one state, a database elsewhere, and either may lead."""

import json
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.clusters.lifecycle import booted, live
from tests.clusters.lifecycle.booted import Booted
from tests.clusters.lifecycle.live import birth, eventually
from tests.clusters.lifecycle.node import BUCKET, PARAMETERS, bundle, resources

pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.slurm,
    pytest.mark.skipif(
        bool(booted.missing()), reason=f"LIFECYCLE NOT TESTED WITH SYSTEMD: {booted.missing()}"
    ),
]

HEADS = ("10.9.0.5", "10.9.0.6")
DATABASE = "10.9.2.5"
SHARED = "/fsx/aws/hyperpod/demo"
SQL = """
CREATE USER 'admin'@'%' IDENTIFIED BY 'not-to-be-printed';
GRANT ALL ON *.* TO 'admin'@'%';
"""
AWS = """#!/bin/sh
# Plays Secrets Manager.
echo '{"username": "admin", "password": "not-to-be-printed"}'
"""


def test_two_controllers_share_state_and_either_takes_over(tmp_path) -> None:
    rc = resources()
    (first,) = rc["InstanceGroups"][0]["Instances"]
    second = {"InstanceName": "ctl-2", "CustomerIpAddress": HEADS[1], "InstanceId": "i-0" * 8}
    rc["InstanceGroups"][0]["Instances"] = [second, first]
    settings = {
        "slurm_database_endpoint": DATABASE,
        "slurm_database_secret_arn": "arn:aws:secretsmanager:us-east-1:000000000000:secret:db",
        "slurm_shared_directory": "/fsx",
    }
    parameters = json.dumps({**PARAMETERS, "slurm_configurations": settings})
    made = bundle(tmp_path / "bundle", **{"provisioning_parameters.json": parameters})
    with (
        Booted(tmp_path / "db", DATABASE, tmp_path / "shared") as database,
        Booted(tmp_path / "a", HEADS[0], tmp_path / "shared") as one,
        Booted(tmp_path / "b", HEADS[1], tmp_path / "shared") as two,
    ):
        for machine in (database, one, two):
            live.connect(machine, database)
        database.says("systemctl", "start", "mariadb")
        database.says("mysql", "--execute", SQL)
        for machine in (one, two):
            live.furnish(machine, True, rc)
            conf = machine.path("/etc/slurm/slurm.conf")
            named = "SlurmctldHost=ip-10-9-0-5(10.9.0.5)\n"
            other = "SlurmctldHost=ip-10-9-0-6(10.9.0.6)\n"
            conf.write_text(conf.read_text().replace(named, named + other))
            machine.write("/usr/bin/aws", AWS, 0o755)
            shutil.copytree(made.directory, machine.path(BUCKET))
        with ThreadPoolExecutor() as pool:
            later = pool.submit(birth, two)
            output = birth(one) + later.result()
        assert "not-to-be-printed" not in output
        _lead_in_turn(one, two)


def _lead_in_turn(one: Booted, two: Booted) -> None:
    for machine in (one, two):
        link = machine.says("readlink", "/etc/slurm/slurm.conf", "/var/spool/slurmctld").split()
        assert link == [f"{SHARED}/opt/slurm/etc/slurm.conf", f"{SHARED}/var/spool/slurmctld"]
        assert " done in" not in birth(machine)
    eventually(lambda: _up(two) == ["UP", "UP"])
    assert two.says("sacctmgr", "-nP", "show", "cluster", "format=cluster") == "demo"
    one.says("scontrol", "create", "reservation", "ReservationName=kept", *RESERVED)
    one.says("systemctl", "stop", "slurmctld")
    two.says("scontrol", "takeover")
    eventually(lambda: _up(two) == ["DOWN", "UP"])
    assert "ReservationName=kept" in two.says("scontrol", "show", "reservation")
    assert {"ada", "bob"} <= set(two.says("sacctmgr", "-nP", "show", "user", "format=user").split())


RESERVED = ("StartTime=now+1days", "Duration=60", "Users=root", "Nodes=ip-10-9-1-20")


def _up(machine: Booted) -> list[str]:
    output = machine.run("scontrol", "ping")[1]
    return [line.split()[-1] for line in output.splitlines() if "Slurmctld(" in line]
