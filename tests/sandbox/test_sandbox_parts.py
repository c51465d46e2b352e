"""Parts of the sandbox that need no Slurm: reaping, a metadata service, played hardware."""

import os
import socket
import subprocess
import sys
from datetime import datetime
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from hpctl.detection.check import CheckedMachine, ExpectedHardware
from hpctl.detection.checks import host_spot
from hpctl.sandbox import command, hardware, slurmconf, spec, supervisor
from hpctl.sandbox.faults import write_or_remove_hardware_file
from hpctl.sandbox.instances import InstanceMetadataService
from hpctl.sandbox.logs import read_last_log_lines
from hpctl.sandbox.packages import SandboxPrograms
from hpctl.sandbox.proctree import list_zombie_children
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import HpctlError
from tests.waiting import until


def ended() -> subprocess.Popen[bytes]:
    child = subprocess.Popen(["true"])
    until(lambda: child.pid in list_zombie_children(os.getpid()))
    return child


@pytest.mark.parametrize("points", [True, False])
def test_down_says_how_a_shell_forgets_the_sandbox(tmp_path, monkeypatch, points):
    (tmp_path / "spec.json").touch()
    config = str(tmp_path / "hpctl.yaml")
    exports = {"SLURM_CONF": "/s", "HPCTL_CONFIG": config, "PATH": "/bin"}
    one = SimpleNamespace(state_dir=tmp_path, exports=exports, down=lambda: None)
    monkeypatch.setattr(command, "_open_sandbox", lambda name: one)
    monkeypatch.setenv("HPCTL_CONFIG", config if points else "/etc/hpctl/hpctl.yaml")
    shown = CliRunner().invoke(command.sandbox, ["down"]).output
    assert "is gone" in shown
    assert ("unset SLURM_CONF HPCTL_CONFIG\n" in shown) is points


def test_sandboxes_that_start_together_get_ports_of_their_own(monkeypatch):
    # One choice of ports, as it happens among many sandboxes, though no port is bound yet.
    # Of this process alone, so that another run of this test on the machine has its own.
    first = 12000 + 16 * (os.getpid() % 1000)
    monkeypatch.setattr(spec.random, "randrange", lambda start, stop: first)
    code = f"from hpctl.sandbox import spec; spec.random.randrange = lambda start, stop: {first};"
    code += "print(spec.find_free_sandbox_ports(4).slurmctld, flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        assert other.stdout.readline() == f"{first}\n"
        with pytest.raises(HpctlError, match="needs 10 consecutive free TCP ports"):
            spec.find_free_sandbox_ports(4)
        other.stdin.close()
    assert spec.find_free_sandbox_ports(4).slurmctld == first


def test_one_that_another_thread_collects_first_ends_nothing(monkeypatch):
    child = ended()
    child.wait()
    monkeypatch.setattr(supervisor, "list_zombie_children", lambda parent: [child.pid])
    supervisor.reap_orphans()


def test_strangers_are_collected_and_our_own_are_left_to_their_popen():
    stranger, ours = ended(), ended()
    supervisor.reap_orphans([ours.pid])
    assert list_zombie_children(os.getpid()).count(ours.pid) == 1
    assert stranger.pid not in list_zombie_children(os.getpid())
    assert ours.wait() == 0
    stranger.wait()


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.1.1", 0))
        return int(probe.getsockname()[1])


def test_the_agents_check_hears_its_own_instances_notice(port):
    imds = InstanceMetadataService(port)
    machines = {}
    for address in ("127.0.1.1", "127.0.1.2"):
        imds.serve(address)
        machines[address] = CheckedMachine(
            expected=ExpectedHardware(spot=True, metadata_url=imds.url(address))
        )
    imds.give_notice("127.0.1.2", datetime(2026, 1, 1, tzinfo=UTC))
    assert host_spot.fetch_spot_interruption_notice(machines["127.0.1.1"]).action == ""
    heard = host_spot.fetch_spot_interruption_notice(machines["127.0.1.2"])
    assert (heard.action, heard.at) == ("terminate", "2026-01-01T00:00:00Z")
    imds.serve("127.0.1.2")
    assert host_spot.fetch_spot_interruption_notice(machines["127.0.1.2"]).action == "", (
        "a new instance has none"
    )


def test_a_file_is_changed_in_place_and_only_below_the_node(tmp_path):
    root = tmp_path / "hardware"
    hardware.make_sysfs_tree(root, {"efa": 1})
    path = "/sys/class/infiniband/rdmap79s0/ports/1/state"
    held = (root / path[1:]).open()
    write_or_remove_hardware_file(root, path, "1: DOWN")
    assert held.read() == "1: DOWN\n"
    held.close()
    write_or_remove_hardware_file(root, path, remove=True)
    assert not (root / path[1:]).exists()
    write_or_remove_hardware_file(root, "/sys/class/infiniband/rdmap79s0", remove=True)
    assert not (root / "sys/class/infiniband/rdmap79s0").exists()
    write_or_remove_hardware_file(root, "/sys/class/nvme/nvme0/state", "live")
    assert (root / "sys/class/nvme/nvme0/state").read_text() == "live\n"
    for outside in ("/../boot_id", "/sys/../../boot_id", "/", "/proc/.."):
        with pytest.raises(HpctlError, match="is outside the node's emulated hardware"):
            write_or_remove_hardware_file(root, outside, "x")
    with pytest.raises(HpctlError, match="No such file"):
        write_or_remove_hardware_file(root, "/sys/nothing", remove=True)


@pytest.mark.parametrize(
    ("version", "plugin"),
    [
        ((22, 5, 8), "cgroup/v1"),
        ((23, 2, 0), "cgroup/v1"),
        ((23, 11, 10), "cgroup/v1"),
        ((24, 5, 0), "disabled"),
        ((24, 11, 5), "disabled"),
        ((26, 5, 5), "disabled"),
    ],
)
def test_cgroup_conf_names_a_plugin_that_the_release_knows(version, plugin):
    assert slurmconf.render_cgroup_conf(SandboxPrograms({}, version)) == f"CgroupPlugin={plugin}\n"


def test_no_plugin_of_slurm_conf_needs_cgroups():
    template = slurmconf._TEMPLATE.read_text()
    assert "ProctrackType=proctrack/linuxproc\n" in template
    assert "cgroup" not in template


def test_the_end_of_a_log_is_what_the_daemon_said(tmp_path):
    out, own = tmp_path / "slurmd.x.out", tmp_path / "slurmd.x.log"
    assert read_last_log_lines(out) == "(no output)"
    own.write_text("[2026-11-27T10:10:36.126] error: no [scope]\n")
    out.write_text("\n")
    assert read_last_log_lines(out) == "error: no [scope]"
    long = "slurmd: " + "x" * 100_000
    out.write_text(f"slurmd: one\nslurmd: two\n\nslurmd: error: three\n{long}\n \n")
    assert read_last_log_lines(out, 1) == "x" * 300
    out.write_bytes(b"slurmd: one\nslurmd: two\nslurmd: error: \xff\nmunged: four\n\n")
    assert read_last_log_lines(out) == "two / error: \ufffd / four"
