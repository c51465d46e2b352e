"""Each check of the doctor against a thing that is right and one that is wrong."""

import os
import socket
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from hpctl.cli import doctor
from hpctl.cli.doctor import DoctorCheckInputs, check_configuration_file
from hpctl.engine.config import Config, SlurmSection
from hpctl.engine.config_loading import load_config
from hpctl.engine.state_disk import FilesystemMount, find_filesystem_mount_for_path
from hpctl.engine.world_client import WorldClient, WorldUnavailableError
from hpctl.toolkit.checks_view import CheckView
from hpctl.toolkit.errors import ServiceUnavailable
from hpctl.vocabulary.cloud_facts import CloudProviderView, Instance, InstanceGroup, InstanceStatus
from hpctl.vocabulary.policy import AutoscalePolicy, InstanceGroupSizeLimits, OperatingMode
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests import munged
from tests.cli import worlds

pytestmark = pytest.mark.integration

HEAD = Instance("i-1", InstanceStatus.RUNNING, "workers", protected=True)
MOUNTS = """\
22 1 252:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
30 22 0:25 / /fsx rw,relatime shared:2 - lustre 10.0.0.1@tcp:/fsx rw
31 22 0:26 / /mnt/my\\040disk rw,relatime - xfs /dev/vdb rw
32 30 0:27 / /fsx/local rw,relatime - xfs /dev/vdc rw
"""


def verdicts(found) -> dict[str, str]:
    return {c.name: c.verdict for c in found}


def with_(head, **change):
    return replace(load_config(str(head.config)), **change)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/hpctl", "ext4"), ("/fsx/hpctl", "lustre"), ("/fsx/local/hpctl", "xfs"),
        ("/fsxother", "ext4"), ("/mnt/my disk/x", "xfs"),
    ],
)  # fmt: skip
def test_the_file_system_is_that_of_the_longest_mount(path, kind):
    assert find_filesystem_mount_for_path(Path(path), MOUNTS).kind == kind


def test_a_state_directory_on_the_network_fails_unless_a_database_server_keeps_the_journal(
    head, monkeypatch
):
    monkeypatch.setattr(doctor, "find_world_writable_directories", lambda path: [])
    assert verdicts(doctor.check_state_directory(DoctorCheckInputs(with_(head), worlds.NOW))) == {
        "state directory": "ok"
    }
    monkeypatch.setattr(
        doctor, "find_filesystem_mount_for_path", lambda path, mounts: FilesystemMount("/", "nfs4")
    )
    (check,) = doctor.check_state_directory(
        DoctorCheckInputs(with_(head, state_dir=head.dir / "no"), worlds.NOW)
    )
    assert (check.verdict, check.fix) == ("fail", f"mkdir -p {head.dir}/no")
    (check,) = doctor.check_state_directory(DoctorCheckInputs(with_(head), worlds.NOW))
    assert (check.verdict, "nfs4" in check.what) == ("fail", True)
    server = with_(head, database_url="postgresql://head/hpctl")
    assert verdicts(doctor.check_state_directory(DoctorCheckInputs(server, worlds.NOW))) == {
        "state directory": "ok"
    }


def test_a_state_directory_on_the_file_system_of_tmp_is_a_warning(head, monkeypatch):
    monkeypatch.setattr(
        doctor, "find_world_writable_directories", lambda path: ["/tmp", "/var/tmp"]
    )
    (check,) = doctor.check_state_directory(DoctorCheckInputs(with_(head), worlds.NOW))
    assert check.verdict == "warn"
    assert "on the file system of /tmp, /var/tmp, which any user can fill" in check.what
    server = with_(head, database_url="postgresql://head/hpctl")
    assert verdicts(doctor.check_state_directory(DoctorCheckInputs(server, worlds.NOW))) == {
        "state directory": "ok"
    }


def test_munge_goes_there_and_back():
    with munged.realm() as realm:
        (fine,) = doctor.check_munge(realm.head)
        assert (fine.verdict, "127.0.1.1" in fine.what) == ("ok", True)
    (dead,) = doctor.check_munge(realm.head)
    assert dead.verdict == "fail"
    assert "munge" in dead.fix


def test_the_daemons_lease_its_intake_and_a_kill_switch_left_on(history, monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "head-1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        config = with_(history)
        intake = replace(config.intake, listen=f"0.0.0.0:{port}")
        config = replace(config, intake=intake)
        found = verdicts(doctor.check_daemon(DoctorCheckInputs(config, worlds.NOW)))
    assert found == {"journal": "ok", "daemon": "ok", "intake": "ok"}
    assert verdicts(doctor.check_daemon(DoctorCheckInputs(config, worlds.NOW)))["intake"] == "fail"
    (history.dir / "STOP").touch()
    later = {c.name: c for c in doctor.check_daemon(DoctorCheckInputs(config, worlds.at(3600)))}
    assert (later["daemon"].verdict, "silent for" in later["daemon"].what) == ("fail", True)
    switch = later["kill switch"]
    assert (switch.verdict, switch.fix) == ("warn", f"rm {history.dir}/STOP")


class Refuses:
    """A Slurm that answers nothing."""

    def view(self) -> None:
        raise ServiceUnavailable("slurmctld is asked", "")

    def version(self) -> tuple[int, int, int]:
        return (24, 11, 5)


@pytest.fixture
def mute(monkeypatch) -> None:
    monkeypatch.setattr(
        "hpctl.engine.adapters.choose_slurm_client_for_daemon", lambda _: (Refuses(), "cli")
    )


def test_nodes_and_jobs_are_the_daemons_where_one_serves_its_world(head, mute, monkeypatch):
    slurm = worlds.slurm()
    monkeypatch.setattr(WorldClient, "read_scheduler_view", lambda _: slurm)
    facts = DoctorCheckInputs(with_(head), slurm.as_of + timedelta(seconds=4))
    found = {c.name: c.what for c in doctor.check_slurmctld(facts)}
    counts = f"{len(slurm.nodes)} nodes and {len(slurm.jobs)} jobs"
    assert found["slurmctld"] == f"{counts} read by the daemon 4.0 s ago"
    assert list(doctor.check_instance_to_node_mapping(facts)) == []


OLD = replace(worlds.slurm(), as_of=worlds.NOW - timedelta(seconds=31))


@pytest.mark.parametrize("served", [None, WorldUnavailableError("none answers"), OLD])
def test_slurm_is_asked_where_the_daemon_does_not_know_it(head, mute, monkeypatch, served):
    def read(_: WorldClient) -> SchedulerView | None:
        if isinstance(served, WorldUnavailableError):
            raise served
        return served

    monkeypatch.setattr(WorldClient, "read_scheduler_view", read)
    with pytest.raises(ServiceUnavailable, match="slurmctld is asked"):
        list(doctor.check_slurmctld(DoctorCheckInputs(with_(head), worlds.NOW)))


def test_the_cloud_is_asked_once(head, monkeypatch):
    asked = []
    once = SimpleNamespace(view=lambda: asked.append(1) or worlds.cloud())
    monkeypatch.setattr("hpctl.engine.adapters.make_cloud_provider", lambda _: once)
    doctor.run_doctor_checks(with_(head), worlds.NOW)
    assert asked == [1]


def test_missing_commands_are_named(head, tmp_path):
    config = with_(head)
    slurm = replace(config.slurm, bin=tmp_path)
    (tmp_path / "scontrol").write_text("#!/bin/sh\n")
    (tmp_path / "scontrol").chmod(0o755)
    (check,) = doctor.check_slurm_commands(
        DoctorCheckInputs(replace(config, slurm=slurm), worlds.NOW)
    )
    assert check.verdict == "fail"
    assert "squeue, sinfo, sbatch" in check.what
    assert "scontrol" not in check.what


def test_exactly_one_replaces():
    expected = {
        (True, OperatingMode.OWN): "fail",
        (False, OperatingMode.ASSIST): "warn",
        (False, OperatingMode.OWN): "ok",
        (True, OperatingMode.ASSIST): "ok",
    }
    for (automatic, mode), verdict in expected.items():
        found = doctor.check_node_recovery_setting(
            CloudProviderView(worlds.NOW, True, automatic), mode
        )
        assert (found.verdict, "`hpctl cluster update`" in found.fix) == (verdict, verdict != "ok")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({}, "ok: 1 group(s) within their bounds"),
        ({"groups": {}}, "fail: the cluster has no group workers"),
        ({"instances": {HEAD.id: HEAD}}, "fail: group workers has controllers"),
        ({"groups": {"workers": InstanceGroup("workers", target=9)}}, "warn: group workers has 9"),
        ({"continuous": False}, "warn: NodeProvisioningMode is not Continuous"),
    ],
)
def test_autoscaled_groups_are_there_and_can_grow(head, change, said):
    groups = {"workers": InstanceGroupSizeLimits(min_count=1, max_count=8)}
    section = AutoscalePolicy(enabled=True, groups=groups)
    known = {"workers": InstanceGroup("workers", target=4)}
    view = CloudProviderView(worlds.NOW, True, groups=known, continuous=True)
    (check,) = doctor.check_autoscaled_groups(
        replace(view, **change), with_(head, autoscale=section)
    )
    assert f"{check.verdict}: {check.what}".startswith(said)


def test_a_cluster_that_takes_no_replacement_yet_is_reported_with_what_it_needs(head):
    assert head.cloud is not None
    head.cloud = replace(head.cloud, unpatched=("BatchReplaceClusterNodes",))
    (check,) = [
        c
        for c in doctor.check_cloud_provider_access(DoctorCheckInputs(with_(head), worlds.NOW))
        if c.name == "software update"
    ]
    assert (check.verdict, check.what[:36]) == ("warn", "older than BatchReplaceClusterNodes,")
    assert check.fix == "when no jobs run: `hpctl cluster software-update llm-prod`"


def test_what_does_not_answer_is_unknown_with_its_own_hint_and_hides_nothing_else(head):
    found = verdicts(
        doctor.run_doctor_checks(with_(head), worlds.NOW)
    )  # no journal was ever written
    assert (found["daemon"], found["cloud"], found["slurm.conf"]) == ("unknown", "ok", "unknown")
    head.cloud = head.slurm = None
    found = {c.name: (c.verdict, c.fix) for c in doctor.run_doctor_checks(with_(head), worlds.NOW)}
    assert found["cloud"] == found["slurmctld"] == ("unknown", "look at its log")


def test_a_broken_configuration_is_a_failed_check_with_every_problem(head):
    head.config.write_text("mode: won\nbudget: {}\n")
    config, check = check_configuration_file(str(head.config))
    assert config is None
    assert check.verdict == "fail"
    assert "mode" in check.what
    assert "budget" in check.what
    result = head.run("doctor")
    assert result.exit_code == 1
    assert "did you mean 'budgets'" in " ".join(result.stdout.split())


@pytest.fixture
def prints(head, monkeypatch):
    """What the doctor says of a scheduler of that version, with that configuration."""

    def said(*version: int, **config: str) -> dict[str, CheckView]:
        shows = SimpleNamespace(version=lambda: version, show_config=lambda: config)
        monkeypatch.setattr("hpctl.engine.adapters.make_slurm_command_client", lambda _: shows)
        return {
            c.name: c
            for c in doctor.check_slurm_conf_settings(DoctorCheckInputs(with_(head), worlds.NOW))
        }

    return said


@pytest.mark.parametrize(
    ("uid", "slurm_user", "verdict"),
    [
        (0, "slurm(64030)", "ok"),
        (65534, "nobody(65534)", "ok"),
        (65534, "slurm(64030)", "unknown"),
        (4_000_000_000, "slurm(64030)", "unknown"),
    ],
)
def test_rights_are_sure_for_root_and_slurms_user_only(
    prints, monkeypatch, uid, slurm_user, verdict
):
    monkeypatch.setattr(os, "getuid", lambda: uid)
    assert prints(24, 11, 5, SlurmUser=slurm_user)["slurm rights"].verdict == verdict


def test_the_hazards_of_slurms_settings_are_reported_with_fix_and_source(prints):
    found = prints(24, 11, 5, JobRequeue="0", SlurmUser="root(0)")
    assert found["job-requeue"].verdict == "fail"
    assert "JobRequeue=1" in found["job-requeue"].fix
    assert "slurm.conf(5)" in found["job-requeue"].source
    assert "slurm.conf" not in found
    good = prints(22, 5, 8, UnkillableStepTimeout="60 sec", SlurmUser="root(0)")
    assert (good["slurm.conf"].verdict, good["requeue-completing"].verdict) == ("ok", "note")
    # The release that counts is slurmctld's.
    expedited = {"SlurmctldParameters": "enable_expedited_requeue"}
    old = prints(24, 11, 5, SLURM_VERSION="25.11.7", SlurmUser="root(0)", **expedited)
    assert "25.11" not in old.pop("slurm.conf").what.replace("25.11.7", "")
    assert old["slurm release"].verdict == "warn"
    assert "commands are of Slurm 24.11.5, slurmctld of 25.11.7" in old["slurm release"].what
    assert "expedited-requeue" in old, "only a 25.11 has it"


@pytest.mark.parametrize(("commands", "told"), [("22.05.8", True), ("25.11.2", False)])
def test_commands_too_old_for_slurmctld_are_named_where_it_does_not_answer(
    tmp_path, commands, told
):
    there = tmp_path
    for name, text in {
        "scontrol": f'[ "$1" = --version ] && exec echo slurm {commands}\n'
        "echo 'slurm_load_node error: Insane message length' >&2; exit 1",
        "squeue": "exit 1",
        "slurmctld": "echo slurm 25.11.7",
    }.items():
        (there / name).write_text(f"#!/bin/sh\n{text}\n")
        (there / name).chmod(0o755)
    config = Config(slurm=SlurmSection(bin=there, adapter="cli"))
    found: list[CheckView] = []
    with pytest.raises(ServiceUnavailable, match="Insane"):
        found.extend(doctor.check_slurmctld(DoctorCheckInputs(config, worlds.NOW)))
    what = "the commands are of Slurm 22.05.8, slurmctld of 25.11.7"
    adapter, *rest = [(c.name, c.verdict, c.what) for c in found]
    assert adapter[:2] == ("slurm adapter", "ok")
    assert rest == [("slurm release", "fail", what)] * told
