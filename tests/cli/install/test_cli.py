"""`hpctl install` and `hpctl uninstall` below a root, as on an image."""

import json
import sys
from types import SimpleNamespace

import pytest

from hpctl.cli.install import InstallView
from hpctl.cli.install_layout import InstallStepView
from hpctl.engine.config import read_config_file
from hpctl.toolkit import output
from hpctl.toolkit.checks_view import CheckView
from tests.cli.test_json_contract import holds
from tests.fakes import command_line

pytestmark = pytest.mark.integration

ARN = "arn:aws:sagemaker:us-west-2:000000000000:cluster/abcd1234efgh"
RESOURCES = {"ClusterConfig": {"ClusterArn": ARN, "ClusterName": "trainer"}}


def run(root, *text):
    return command_line.run(*text, "--root", root, width=200)


def tree(root):
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
        if not path.is_symlink()
    }


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_head_on_hyperpod_knows_its_cluster_and_keeps_what_is_there(tmp_path):
    write(tmp_path / "opt/ml/config/resource_config.json", json.dumps(RESOURCES))
    before = tree(tmp_path)
    dry = run(tmp_path, "install", "head", "--dry-run")
    assert (
        "would     configuration /etc/hpctl/hpctl.yaml with every default for cluster" in dry.output
    )
    assert tree(tmp_path) == before
    done = run(tmp_path, "install", "head")
    assert done.exit_code == 0, done.output
    written = read_config_file(tmp_path / "etc/hpctl/hpctl.yaml")
    assert (written.cluster.name, written.cluster.region) == ("trainer", "us-west-2")
    assert written.mode == "observe"
    (tmp_path / "etc/hpctl/hpctl.yaml").write_text("mode: own\n")
    (tmp_path / "etc/systemd/system/hpctl-daemon.service").write_text("[Unit]\n")
    again = run(tmp_path, "install", "head", "--cluster", "other")
    assert "already   configuration /etc/hpctl/hpctl.yaml stays as it is" in again.output
    assert "done      file          /etc/systemd/system/hpctl-daemon.service" in again.output
    assert (tmp_path / "etc/hpctl/hpctl.yaml").read_text() == "mode: own\n"


def test_another_hpctl_in_the_path_is_not_overwritten(tmp_path):
    write(tmp_path / "usr/local/bin/hpctl", "#!/bin/sh\n")
    result = run(tmp_path, "install", "login")
    assert (result.exit_code, "belongs to another installation" in result.output) == (1, True)
    assert (tmp_path / "usr/local/bin/hpctl").read_text() == "#!/bin/sh\n"


def test_a_sites_own_lines_in_slurm_conf_stay(tmp_path):
    own = "Prolog=/etc/slurm/site.sh\n# not /opt/hpctl/slurm/prolog.sh\n"
    conf = tmp_path / "opt/slurm/etc/slurm.conf"
    lines = ("EpilogSlurmctld=/opt/hpctl/slurm/epilog_slurmctld.sh\n",)
    write(conf, own + "".join((*lines, "SchedulerParameters=batch_sched_delay=0\n")))
    plug = "required /opt/spank/site.so\n"
    write(conf.with_name("plugstack.conf"), f"optional /opt/hpctl/slurm/hpctl_spank.so x=1\n{plug}")
    write(tmp_path / "etc/hpctl/hpctl.yaml", "mode: own\n")
    assert run(tmp_path, "uninstall").exit_code == 1  # nobody answers the question
    assert "/opt/hpctl/slurm/epilog" in conf.read_text()
    assert run(tmp_path, "uninstall", "--yes").exit_code == 0
    assert (conf.read_text(), conf.with_name("plugstack.conf").read_text()) == (own, plug)
    assert (tmp_path / "etc/hpctl/hpctl.yaml").exists()
    assert run(tmp_path, "uninstall", "--yes", "--purge").exit_code == 0
    assert not (tmp_path / "etc/hpctl").exists()


def test_a_site_s_scheduler_parameters_are_added_to_when_asked_and_restored(tmp_path):
    own = "ClusterName=x\nSchedulerParameters=defer,bf_interval=5 # ours\n"
    conf = tmp_path / "opt/slurm/etc/slurm.conf"
    write(conf, own)
    assert run(tmp_path, "install", "head", "--slurm").exit_code == 0  # nobody is there to ask
    assert "SchedulerParameters=defer,bf_interval=5 # ours" in conf.read_text()
    assert run(tmp_path, "install", "head", "--slurm", "--yes").exit_code == 0
    assert (
        "\nSchedulerParameters=defer,bf_interval=5,batch_sched_delay=0 # ours" in conf.read_text()
    )
    again = run(tmp_path, "install", "head", "--slurm", "--yes")
    assert conf.read_text().count("batch_sched_delay=0") == 1, again.output
    assert run(tmp_path, "uninstall", "--yes").exit_code == 0
    assert conf.read_text() == own


@pytest.mark.parametrize(("answer", "added"), [("y", True), ("n", False)])
def test_a_person_is_asked_about_the_site_s_scheduler_parameters(
    tmp_path, monkeypatch, answer, added
):
    conf = tmp_path / "opt/slurm/etc/slurm.conf"
    write(conf, "SchedulerParameters=defer\n")
    terminal = SimpleNamespace(**{**vars(sys), "stdin": SimpleNamespace(isatty=lambda: True)})
    monkeypatch.setattr("hpctl.cli.install.sys", terminal)
    args = ("install", "head", "--slurm", "--root", tmp_path)
    result = command_line.run(*args, stdin=f"{answer}\n", width=200)
    assert "slurm.conf sets SchedulerParameters=defer. Add batch_sched_delay=0" in result.output
    assert ("SchedulerParameters=defer,batch_sched_delay=0" in conf.read_text()) is added


def test_the_json_is_as_documented():
    step, check = InstallStepView("PATH", "done", "there"), CheckView("munge", "ok", "fine", "")
    holds("install", output.format_view_json("install", InstallView(False, (step,), (check,))))
