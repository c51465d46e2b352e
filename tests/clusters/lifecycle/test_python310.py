"""A node as HyperPod's AMI has it: Python 3.10 is the only one, and no network is asked."""

import json
import shutil
import socket
from pathlib import Path

import pytest

from hpctl.clusters import bundle as bundles
from hpctl.clusters.bundle_checks import find_bundle_problems
from tests.clusters.lifecycle import chroot
from tests.clusters.lifecycle.chroot import Machine
from tests.clusters.lifecycle.node import ENVIRONMENT, PARAMETERS, ROOT, command, furnish, states
from tests.process import run_text
from tests.waiting import until as waited

VENV = ROOT / "build/python3.10"
"""Made by .ci/floor where the machine has a Python 3.10."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.nightly,
    pytest.mark.slurm,  # where root and Slurm's packages are at hand
    pytest.mark.skipif(bool(chroot.missing()), reason=f"LIFECYCLE NOT TESTED: {chroot.missing()}"),
    pytest.mark.skipif(not VENV.is_dir(), reason="PYTHON 3.10 NOT TESTED: .ci/floor found none"),
]
AGENT = "/opt/hpctl/bin/hpctl"
SLURM = """ClusterName=demo
SlurmUser=root
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort=26817
StateSaveLocation=/tmp
ProctrackType=proctrack/linuxproc
NodeName=ip-10-9-1-20 NodeAddr=127.0.0.1 Port=26818
PartitionName=dev Nodes=ALL Default=YES
"""
CONFIG = "mode: observe\nintake: {listen: '127.0.0.1:8470'}\nslurm: {adapter: cli}\n"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> bundles.LifecycleBundle:
    """As `hpctl cluster lifecycle bundle --installed` of a 3.10 makes it."""
    target = tmp_path_factory.mktemp("bundle") / "b"
    args = [
        str(VENV / "bin/hpctl"),
        "cluster",
        "lifecycle",
        "bundle",
        "-o",
        str(target),
        "--installed",
    ]
    done = run_text(args, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    (target / "config.json").write_text(json.dumps({"failure_wait_s": 0}))
    (target / "provisioning_parameters.json").write_text(json.dumps(PARAMETERS))
    assert find_bundle_problems(target) == ()
    return bundles.write_bundle_manifest(target)


def with_python_310_alone(machine: Machine) -> None:
    """The machine's own Python goes; a 3.10 takes its place, with the libraries that it brings."""
    for path in machine.path("/usr/bin").glob("python3*"):
        path.unlink()
    # At the same place: its shared library is found by a path.
    base = Path((VENV / "bin/python").resolve().parents[1])
    left_out = shutil.ignore_patterns("test", "tests", "__pycache__", "site-packages", "*.a")
    machine.path(f"{base}/bin").mkdir(parents=True)
    shutil.copy(base / "bin/python3.10", machine.path(f"{base}/bin/python3.10"))
    shutil.copytree(
        base / "lib/python3.10", machine.path(f"{base}/lib/python3.10"), ignore=left_out
    )
    for library in (base / "lib").glob("libpython3*.so*"):
        shutil.copy(library, machine.path(f"{base}/lib/{library.name}"))
    machine.says("ln", "-s", f"{base}/bin/python3.10", "/usr/bin/python3.10")
    machine.says("ln", "-s", "python3.10", "/usr/bin/python3")


def until(machine: Machine, output: str, *args: str) -> str:
    def out() -> str:
        text = machine.run(*args)[1]
        return text if output in text else ""

    return waited(out, 30, every=0.5)


def test_hpctl_is_installed_from_the_bundle_and_its_agent_reports(made, tmp_path):
    with Machine(tmp_path / "machine") as machine:
        furnish(machine, made)
        with_python_310_alone(machine)
        code, out = machine.run(*command("compute"), env=ENVIRONMENT)
        assert code == 0, out
        assert "lifecycle: OK node=ip-10-9-1-20 role=compute" in out
        assert states(machine)["hpctl"]["state"] == "done"
        assert machine.says("/opt/hpctl/bin/python", "-V").startswith("Python 3.10.")
        machine.write("/etc/hpctl/hpctl.yaml", CONFIG)
        machine.says("sh", "-c", "mkdir -p /run/munge && chown munge: /run/munge")
        machine.says("runuser", "-u", "munge", "--", "munged", "--origin", "127.0.0.1")
        machine.write("/etc/slurm/slurm.conf", SLURM.format(host=socket.gethostname()))
        machine.says("slurmctld")
        daemon = (AGENT, "daemon", "run", "--config", "/etc/hpctl/hpctl.yaml")
        agent = (AGENT, "agent", "run", "--head", "http://127.0.0.1:8470", "--node", "ip-10-9-1-20")
        with machine.start(*daemon) as one, machine.start(*agent) as other:
            try:
                until(machine, '"last_heard": "20', AGENT, "nodes", "--json")
                output = json.loads(machine.run(AGENT, "doctor", "--json")[1])
            finally:
                one.kill()
                other.kill()
                machine.kill_everything()
        wrong = [c for c in output["checks"] if c["verdict"] in ("fail", "unknown", "warn")]
        wrong = [c for c in wrong if c["name"] != "clock"]  # nobody sets it in a chroot
        assert [c["name"] for c in output["checks"] if c["name"] == "intake"], output
        assert wrong == []
