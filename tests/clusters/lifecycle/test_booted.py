"""A cluster that is born from a bundle, its daemons really running: systemd, Slurm, MariaDB, hpctl.

tests/clusters/lifecycle/test_chroot.py kills every step of the scripts.
"""

import json
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest
from msgspec import Struct

from tests.clusters.lifecycle import booted, chroot, live
from tests.clusters.lifecycle.booted import Booted
from tests.clusters.lifecycle.live import COMMAND, birth, eventually
from tests.clusters.lifecycle.node import ADDRESSES, BUCKET, ENVIRONMENT, wheelhouse
from tests.clusters.lifecycle.test_cli import run as hpctl_lifecycle
from tests.s3 import s3_endpoint

__all__ = ["s3_endpoint"]

MISSING = booted.missing() or chroot.WRONG_PYTHON

pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.slurm,
    pytest.mark.skipif(bool(MISSING), reason=f"LIFECYCLE NOT TESTED WITH SYSTEMD: {MISSING}"),
]


class Cluster(Struct):
    """One machine of each role."""

    controller: Booted
    login: Booted
    compute: Booted

    def all(self) -> tuple[Booted, ...]:
        return (self.controller, self.login, self.compute)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Made by the command itself, with all that daemon and agent need."""
    room = tmp_path_factory.mktemp("bundle")
    wheelhouse(room / "wheels", whole=True)
    args = ["--wheelhouse", str(room / "wheels"), "--config", str(room / "site/config.json")]
    args += ["--python-version", f"{sys.version_info.major}.{sys.version_info.minor}"]
    for path in live.site(room / "site"):
        args += ["--add", str(path)]
    result = hpctl_lifecycle("bundle", "-o", str(room / "bundle"), *args)
    assert result.exit_code == 0, result.output
    return room / "bundle"


@pytest.fixture(scope="module")
def cluster(bundle, s3_endpoint, tmp_path_factory):
    """Controller first, then the others, as HyperPod does."""
    room = tmp_path_factory.mktemp("machines")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint)
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket="sagemaker-live")
        sent = hpctl_lifecycle("push", str(bundle), "s3://sagemaker-live/scripts")
        assert sent.exit_code == 0, sent.output
        with (
            Booted(room / "c", ADDRESSES["controller"], room / "shared") as controller,
            Booted(room / "l", ADDRESSES["login"], room / "shared") as login,
            Booted(room / "n", ADDRESSES["compute"], room / "shared") as compute,
        ):
            made = Cluster(controller, login, compute)
            for machine in made.all():
                live.connect(machine, controller)
                live.furnish(machine, machine is controller)
            live.download(s3, "sagemaker-live", controller)
            for machine in (login, compute):
                shutil.copytree(controller.path(BUCKET), machine.path(BUCKET))
            s3.close()
            birth(controller)
            with ThreadPoolExecutor() as pool:
                list(pool.map(birth, (login, compute)))
            yield made


def as_ada(machine: Booted, line: str) -> tuple[int, str]:
    return machine.run("runuser", "--login", "ada", "--command", line)


def idle(cluster: Cluster) -> bool:
    return cluster.controller.says("sinfo", "-hn", cluster.compute.name, "-o", "%T") == "idle"


def test_nothing_failed_and_a_second_run_changes_nothing(cluster: Cluster) -> None:
    for machine in cluster.all():
        assert machine.says("systemctl", "is-system-running") == "running"
        before = _daemons(machine)
        assert " done in" not in birth(machine)
        assert _daemons(machine) == before


def _daemons(machine: Booted) -> str:
    units = ("slurmctld", "slurmd", "slurmdbd", "mariadb", "munge", "hpctl-daemon", "hpctl-agent")
    return machine.says("systemctl", "show", *units, "--property=Id,MainPID,ActiveState")


def test_a_job_of_a_listed_user_runs_and_is_accounted_for(cluster: Cluster) -> None:
    eventually(lambda: idle(cluster))
    code, out = as_ada(cluster.login, "sbatch --wait --output=out --wrap 'hostname; id -un'")
    assert code == 0, out
    assert as_ada(cluster.login, "cat out") == (0, f"{cluster.compute.name}\nada\n")
    wanted = f"ada|users|COMPLETED|{cluster.compute.name}"
    query = ("sacct", "-aXnP", "-o", "user,account,state,nodelist")
    eventually(lambda: wanted in cluster.controller.says(*query).splitlines())
    assert "ExitCode=0:0" in cluster.controller.says("scontrol", "show", "job", "1")


def test_the_agent_reports_to_the_daemon(cluster: Cluster) -> None:
    def heard() -> bool:
        found = cluster.controller.run("/opt/hpctl/bin/hpctl", "nodes", "--json")[1]
        rows = {row["name"]: row for row in json.loads(found)["nodes"]}
        return rows[cluster.compute.name]["last_heard"] is not None

    eventually(heard)


def test_who_has_a_job_may_log_in(cluster: Cluster) -> None:
    """Over keys that the scripts made, and by pam_slurm_adopt; administrators always."""
    ssh = f"ssh -o BatchMode=yes {cluster.compute.name} hostname"
    eventually(lambda: idle(cluster))
    code, out = as_ada(cluster.login, ssh)
    assert (code, "you have no active jobs on this node" in out) == (255, True), out
    found = cluster.login.run("runuser", "--login", "ubuntu", "--command", ssh)
    assert (found[0], found[1].splitlines()[-1]) == (0, cluster.compute.name)
    as_ada(cluster.login, "sbatch --wrap 'sleep 60'")
    eventually(lambda: as_ada(cluster.login, ssh)[0] == 0)
    cluster.controller.says("scancel", "--user=ada")


def test_logs_are_rotated_under_running_daemons(cluster: Cluster) -> None:
    machine, log = cluster.controller, "/var/log/slurm/slurmctld.log"
    machine.says("logrotate", "--force", "/etc/logrotate.d/hpctl-slurm")
    assert machine.path(log + ".1").stat().st_size > 1000
    machine.says("scontrol", "reconfigure")
    eventually(lambda: "reconfigure" in machine.path(log).read_text())
    assert machine.says("systemctl", "is-active", "slurmctld", "slurmdbd").split() == ["active"] * 2


def test_what_others_undo_a_further_run_does_again(cluster: Cluster) -> None:
    controller, compute = cluster.controller, cluster.compute
    # HyperPod's cluster agent writes slurm.conf anew; a daemon that starts again has its FIFO.
    controller.write("/etc/slurm/slurm.conf", live.SLURM_CONF)
    controller.says("systemctl", "restart", "hpctl-daemon")
    assert controller.says("stat", "-c", "%U %a", "/var/lib/hpctl") == "slurm 711"
    assert controller.says("stat", "-c", "%U", "/var/lib/hpctl/wake") == "slurm"
    birth(controller)
    config = controller.says("scontrol", "show", "config")
    assert re.search(r"EpilogSlurmctld += /opt/hpctl/slurm/epilog_slurmctld.sh", config)
    assert re.search(r"AccountingStorageType += accounting_storage/slurmdbd", config)
    # A munged that found another address of its host: the daemon would take no report.
    hosts = compute.path("/etc/hosts").read_text()
    compute.write("/etc/hosts", hosts.replace(compute.address + " ", "172.16.0.9 "))
    compute.says("systemctl", "restart", "munge")
    birth(compute)
    assert f"({compute.address})" in compute.says("sh", "-c", "munge -n | unmunge")
    assert 'OPTIONS="--origin=10.9.1.20"\n' in compute.path("/etc/default/munge").read_text()
    compute.write("/etc/hosts", hosts)


def test_a_slurmd_that_ends_keeps_a_compute_node_out_and_no_login_node(cluster: Cluster) -> None:
    """systemd calls it active for a while: the step asks slurmd itself, and repeats its words.

    On older AMIs slurm.conf names no login node: its slurmd ends, and users submit all the same.
    """
    compute, login = cluster.compute, cluster.login
    drop_in = "/etc/systemd/system/slurmd.service.d/z.conf"
    for machine in (login, compute):
        machine.write(drop_in, "[Service]\nEnvironment=SLURMD_OPTIONS=-Nnobody\n")
        machine.says("systemctl", "daemon-reload")
        machine.says("systemctl", "restart", "slurmd")
    birth(login)
    assert as_ada(login, "sbatch --hold --wrap true")[0] == 0
    cluster.controller.says("scancel", "--user=ada")
    code, out = compute.run(*COMMAND, env=ENVIRONMENT)
    last = out.rstrip().rpartition("\n")[2]
    assert (code, "FAILED step=slurm node=ip-10-9-1-20 after 4 tries" in last) == (1, True), out
    assert "slurmd.service has ended: " in last
    compute.path(drop_in).unlink()
    birth(compute)
    eventually(lambda: idle(cluster))


def test_a_node_that_reboots_comes_back_without_the_scripts(cluster: Cluster) -> None:
    cluster.compute.reboot()
    assert cluster.compute.says("systemctl", "is-system-running") == "running"
    assert cluster.compute.says("systemctl", "is-active", "slurmd", "hpctl-agent").split() == (
        ["active"] * 2
    )
    eventually(lambda: idle(cluster), within=60)
    code, out = as_ada(cluster.login, "sbatch --wait --output=after --wrap hostname")
    assert code == 0, out
    assert as_ada(cluster.compute, "cat after") == (0, f"{cluster.compute.name}\n")
