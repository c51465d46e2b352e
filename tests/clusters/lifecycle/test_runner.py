"""The runner below a directory, as an ordinary user would run it: states, tries, limits, kills."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpctl.clusters.bundle import write_bundle_manifest
from tests.clusters.lifecycle.node import ADDRESSES, PARAMETERS, resources
from tests.tables import beside

pytestmark = pytest.mark.integration

SCRIPTS = Path(__file__).resolve().parents[3] / "lifecycle_scripts"
STATE = "var/lib/hpctl/lifecycle"
WRONG = beside(__file__, "wrong_settings.yaml")


class Place:
    """A directory that plays a node, and the scripts that run on it."""

    def __init__(self, room: Path, role: str = "compute") -> None:
        self.root, self.scripts = room / "root", room / "scripts"
        self.root.mkdir(parents=True)
        shutil.copytree(SCRIPTS, self.scripts)
        self.resources = room / "resource_config.json"
        self.resources.write_text(json.dumps(resources()))
        self.env = {
            "HPCTL_LIFECYCLE_ROOT": str(self.root),
            "HPCTL_LIFECYCLE_IP": ADDRESSES[role],
            "HPCTL_LIFECYCLE_PYTHON": sys.executable,
            "HPCTL_LIFECYCLE_BACKOFF_S": "0.01",
            "SAGEMAKER_RESOURCE_CONFIG_PATH": str(self.resources),
        }
        self.put("provisioning_parameters.json", json.dumps({**PARAMETERS}))

    def put(self, name: str, text: str) -> Path:
        path = self.scripts / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return path

    def start(self, script: str = "on_create.sh") -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["sh", str(self.scripts / script)], env={**os.environ, **self.env},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def run(self, script: str = "on_create.sh") -> tuple[int, list[str]]:
        with self.start(script) as process:
            out, _ = process.communicate(timeout=60)
        return process.returncode, out.splitlines()

    def state(self, step):
        return json.loads((self.root / STATE / f"{step}.json").read_text())


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def test_each_step_says_what_became_of_it(place):
    code, lines = place.run()
    assert code == 0
    assert lines[-1].startswith("hpctl lifecycle: OK node=ip-10-9-1-20 role=compute steps=1 in ")
    rotation = place.state("log_rotation")
    assert (rotation["state"], rotation["tries"], rotation["weight"]) == ("done", 1, "optional")
    assert place.state("mount_fsx")["state"] == "not_applicable"
    assert place.state("mount_fsx")["why"] == f"no mounts below {place.root}"
    assert place.state("pam")["state"] == "off"
    run = place.state("run")
    assert (run["state"], run["role"], run["group"]) == ("done", "compute", "h100")
    assert lines == (place.root / "var/log/hpctl/lifecycle.log").read_text().splitlines()
    _, again = place.run()
    assert any(line.endswith("step=log_rotation: already done") for line in again)


def test_a_machine_that_is_in_no_cluster_is_left_alone(place):
    del place.env["SAGEMAKER_RESOURCE_CONFIG_PATH"]
    code, lines = place.run()
    assert code == 0
    assert lines[-1].endswith("nothing to do on a plain instance")
    assert not any(place.root.iterdir())


def test_a_required_step_is_tried_again_and_then_named_with_its_last_text(place):
    place.put("config.json", json.dumps({"steps": {"site": "required"}}))
    place.put("site.d/10-scratch.sh", "#!/bin/sh\necho no disk; echo scratch is missing; exit 7\n")
    code, lines = place.run()
    assert code == 1
    assert lines[-1] == (
        "hpctl lifecycle: FAILED step=site node=ip-10-9-1-20 after 2 tries: site.d/10-scratch.sh: "
        f"sh {place.scripts}/site.d/10-scratch.sh: exit code 7: scratch is missing"
    )
    assert place.state("run")["state"] == "failed"
    assert place.state("site")["tries"] == 2


def test_an_optional_step_that_fails_warns_and_the_node_comes_up(place):
    place.put("site.d/10-scratch.sh", "#!/bin/sh\nexit 7\n")
    code, lines = place.run()
    assert code == 0
    assert " warnings=site in " in lines[-1]
    assert any("step=site: WARNING: site.d/10-scratch.sh" in line for line in lines)
    assert place.state("run")["warnings"] == ["site"]
    place.put("site.d/10-scratch.sh", "#!/bin/sh\necho fixed\n")
    code, lines = place.run()
    assert (code, "warnings" in lines[-1], place.state("site")["state"]) == (0, False, "done")


def test_a_site_script_runs_once_and_for_its_role_alone(place):
    mark = place.root / "ran"
    place.put("site.d/1.sh", f'#!/bin/sh\necho "$HPCTL_ROLE $HPCTL_CONTROLLERS" >>{mark}\n')
    place.put("site.d/2.controller.sh", f"#!/bin/sh\necho wrong >>{mark}\n")
    place.put("site.d/3.compute.sh", f"#!/bin/bash\n[[ -n $HPCTL_NODE ]] && echo right >>{mark}\n")
    for _ in range(2):
        code, lines = place.run()
        assert code == 0, lines
    assert mark.read_text().splitlines() == ["compute 10.9.0.5", "right"]


def test_a_try_that_hangs_is_killed_with_all_that_it_started(place):
    place.put("site.d/1.sh", f"#!/bin/sh\nsleep 300 & echo $! >{place.root}/pid; wait\n")
    table = place.scripts / "lifecycle/steps/__init__.py"
    table.write_text(table.read_text().replace('Step("site", "optional", 900, 2)', SHORT))
    code, lines = place.run()
    assert code == 0, lines
    assert "took more than 1 s" in place.state("site")["why"]
    assert place.state("site")["tries"] == 2
    pid = int((place.root / "pid").read_text())
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or ") Z " in stat.read_text()


SHORT = 'Step("site", "optional", 1, 2)'


def test_a_second_run_waits_for_a_step_that_outlived_its_runner(place):
    place.put(
        "site.d/1.sh", f"#!/bin/sh\ntouch {place.root}/began; sleep 1; date >>{place.root}/n\n"
    )
    first = place.start()
    while not (place.root / "began").exists():
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)  # the step is in a session of its own
    code, lines = place.run()
    first.communicate(timeout=30)
    assert code == 0, lines
    assert len((place.root / "n").read_text().splitlines()) == 1
    assert any(line.endswith("step=site: already done") for line in lines)


def test_killed_at_any_moment_it_finishes_when_it_is_run_again(place):
    place.put("site.d/1.sh", f"#!/bin/sh\nsleep 0.05; echo x >{place.root}/done\n")
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(6):
        running = place.start()
        time.sleep(dice.uniform(0.02, 0.8))
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=30)
    code, lines = place.run()
    assert code == 0, lines
    assert (place.root / "done").read_text() == "x\n"
    for path in (place.root / STATE).glob("*.json"):
        assert json.loads(path.read_text())["state"] in ("done", "not_applicable", "off")


@pytest.mark.parametrize("role", ADDRESSES)
def test_the_role_comes_from_slurm_config_where_the_api_configures_slurm(tmp_path, role):
    place = Place(tmp_path, role)
    (place.scripts / "provisioning_parameters.json").unlink()
    slurm = {"PrimaryControllerIp": "10.9.0.5", "SecondaryControllerIps": None}
    found = resources(SlurmConfig=slurm)
    found["InstanceGroups"][1]["SlurmConfig"] = {"NodeType": "Login"}
    place.resources.write_text(json.dumps(found))
    place.run()
    assert place.state("run")["role"] == role


def test_a_second_controller_is_one_too_and_the_primary_is_known(tmp_path):
    place = Place(tmp_path, "login")  # its address, taken by a second controller
    (place.scripts / "provisioning_parameters.json").unlink()
    slurm = {"PrimaryControllerIp": "10.9.0.5", "SecondaryControllerIps": ["10.9.2.5"]}
    place.resources.write_text(json.dumps(resources(SlurmConfig=slurm)))
    place.put("site.d/1.sh", f'#!/bin/sh\necho "$HPCTL_CONTROLLERS" >{place.root}/said\n')
    place.run()
    assert place.state("run")["role"] == "controller"
    assert (place.root / "said").read_text() == "10.9.0.5,10.9.2.5\n"


def test_a_group_that_the_parameters_do_not_name_is_compute_and_reported(place):
    parameters = {**PARAMETERS, "worker_groups": [{"instance_group_name": "h200"}]}
    place.put("provisioning_parameters.json", json.dumps(parameters))
    code, lines = place.run()
    assert (code, place.state("run")["role"]) == (0, "compute")
    assert any(
        line.endswith(
            "WARNING: group h100 is no group of provisioning_parameters.json, "
            "whose worker_groups are h200: taken for compute"
        )
        for line in lines
    )


@pytest.mark.parametrize(
    ("text", "code", "output"),
    [("ClusterName=demo\n", 0, "names none of the controllers 10.9.0.5: going on"), ("", 1, "no ")],
)
def test_a_slurm_conf_of_other_names_is_waited_for_a_minute_and_then_taken(
    tmp_path, text, code, output
):
    place = Place(tmp_path, "controller")
    shared = {"slurm_configurations": {"slurm_shared_directory": "/shared"}}
    place.put("provisioning_parameters.json", json.dumps({**PARAMETERS, **shared}))
    (place.root / "shared").mkdir()
    conf = place.root / "opt/slurm/etc/slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(text)
    waits = place.scripts / "lifecycle/slurm_files.py"
    assert "CONF_S = 60.0" in waits.read_text()
    waits.write_text(waits.read_text().replace("CONF_S = 60.0", "CONF_S = 0.1"))
    ended, lines = place.run()
    assert ended == code, lines
    assert any(output in line and "slurm.conf" in line for line in lines)


def test_an_address_that_is_in_no_group_is_reported(place):
    place.env["HPCTL_LIFECYCLE_IP"] = "10.1.1.1"
    code, lines = place.run()
    assert code == 1
    assert lines[-1].startswith("hpctl lifecycle: FAILED step=node node=")
    assert "has an address of this node (10.1.1.1)" in lines[-1]


def test_the_platforms_own_parameters_are_taken_where_the_bundle_has_none(tmp_path):
    place = Place(tmp_path, "login")
    theirs = place.root / "opt/ml/config/provisioning_parameters.json"
    theirs.parent.mkdir(parents=True)
    (place.scripts / "provisioning_parameters.json").rename(theirs)
    code, lines = place.run()
    assert (code, place.state("run")["role"]) == (0, "login"), lines


@pytest.mark.parametrize(("given", "output"), WRONG)
def test_settings_that_are_wrong_are_reported_with_their_place(place, given, output):
    place.put("config.json", json.dumps(given))
    code, lines = place.run()
    assert (code, "config.json: " in lines[-1]) == (1, True)
    assert output in lines[-1]


def test_a_changed_file_is_named_before_anything_runs(place):
    write_bundle_manifest(place.scripts)
    code, lines = place.run()
    assert code == 0, lines
    assert len(place.state("run")["bundle"]) == 64
    place.put("lifecycle/node.py", "raise SystemExit\n")
    code, lines = place.run()
    assert code == 1
    assert lines[-1].endswith(": lifecycle/node.py is not the file that MANIFEST names")


def test_several_controllers_share_one_directory_whole_or_not_at_all(tmp_path):
    shared = tmp_path / "shared"
    parameters = {**PARAMETERS, "slurm_configurations": {"slurm_shared_directory": "/shared"}}
    rc = resources(
        SlurmConfig={"PrimaryControllerIp": "10.9.0.5", "SecondaryControllerIps": ["10.9.2.5"]}
    )
    for role in ("controller", "login"):
        place = Place(tmp_path / role, role)
        place.resources.write_text(json.dumps(rc))
        place.put("provisioning_parameters.json", json.dumps(parameters))
        (place.root / "shared").symlink_to(shared)
        etc = place.root / "opt/slurm/etc"
        etc.mkdir(parents=True)
        (etc / "slurm.conf").write_text(f"SlurmctldHost=ip-10-9-0-5(10.9.0.5)\n# {role}\n")
        (etc / "slurmdbd.conf").write_text(role)
        (place.root / "var/spool/slurmctld").mkdir(parents=True)
        shared.mkdir(exist_ok=True)
        code, lines = place.run()
        assert code == 0, lines
        assert (etc / "slurm.conf").resolve().is_relative_to(shared)
        assert (etc / "slurm.conf").read_text().endswith("# controller\n")
        assert (etc / "slurmdbd.conf").read_text() == role
        assert (place.root / "var/spool/slurmctld").resolve().is_relative_to(shared)


def test_containers_lie_on_a_large_disk_and_slurm_knows_pyxis(place):
    etc, enroot = place.root / "opt/slurm/etc", place.root / "etc/enroot"
    etc.mkdir(parents=True)
    enroot.mkdir(parents=True)
    (enroot / "enroot.conf").write_text("#ENROOT_TEMP_PATH  x\nENROOT_CACHE_PATH  /opt/enroot\n")
    (etc / "cgroup.conf").write_text("ConstrainCores=yes")
    (etc / "plugstack.conf").write_text("optional other.so\n")
    (place.root / "opt/slurm/lib/slurm").mkdir(parents=True)
    (place.root / "opt/slurm/lib/slurm/spank_pyxis.so").touch()
    place.put("config.json", json.dumps({"containers": {"data_path": "/opt/dlami/nvme"}}))
    code, lines = place.run()
    assert code == 0, lines
    settings = dict(line.split() for line in _plain(enroot / "enroot.conf"))
    assert settings["ENROOT_CACHE_PATH"] == "/opt/dlami/nvme/enroot/cache"
    assert settings["ENROOT_TEMP_PATH"] == "/opt/dlami/nvme/enroot/tmp"
    assert (place.root / "opt/dlami/nvme/enroot/data").stat().st_mode & 0o7777 == 0o1777
    assert _plain(etc / "cgroup.conf") == ["ConstrainCores=yes", "ConstrainDevices=yes"]
    pyxis = "required /opt/slurm/lib/slurm/spank_pyxis.so"
    assert _plain(etc / "plugstack.conf")[:2] == ["optional other.so", pyxis]
    _, lines = place.run()
    assert any(line.endswith("step=containers: already done") for line in lines)


def _plain(path: Path) -> list[str]:
    return [line.replace("$(id -u)", "ID") for line in path.read_text().splitlines()]


def test_a_node_is_closed_to_who_has_no_job_there_where_the_site_says_so(place):
    sshd = place.root / "etc/pam.d/sshd"
    sshd.parent.mkdir(parents=True)
    sshd.write_text("account required pam_unix.so\n")
    place.put("config.json", json.dumps({"steps": {"pam": "required"}}))
    code, lines = place.run()
    assert code == 1
    assert "pam_slurm_adopt.so is on this AMI nowhere" in lines[-1]
    assert sshd.read_text() == "account required pam_unix.so\n"
    module = place.root / "lib/security/pam_slurm_adopt.so"
    module.parent.mkdir(parents=True)
    module.touch()
    for _ in range(2):
        code, lines = place.run()
        assert code == 0, lines
    assert sshd.read_text().count("pam_slurm_adopt.so") == 1
    assert (place.root / "etc/security/hpctl-admins").read_text() == "ubuntu\n"
