"""The steps that are off until config.json names them: what each leaves on a node.

Below a directory where that is enough, else as root on a clean machine with packages of our own
making, which real apt, dpkg, useradd and systemctl install and enable. The programs in them are
played: no Docker, no directory and no bucket is at hand there.
"""

import json
import shutil

import pytest

from hpctl.clusters.bundle import write_bundle_manifest
from tests.clusters.lifecycle import chroot
from tests.clusters.lifecycle.chroot import Machine
from tests.clusters.lifecycle.node import (
    ADDRESSES,
    ENVIRONMENT,
    PARAMETERS,
    UNIT,
    bundle,
    command,
    furnish,
    states,
)
from tests.clusters.lifecycle.test_runner import Place
from tests.process import run_text

pytestmark = pytest.mark.integration

UNNAMED = {key: word for key, word in PARAMETERS.items() if not key.startswith("fsx")}
LUSTRE = "10.0.0.9@tcp:/abcdefgh {} lustre rw,noatime,flock 0 0\n"
ZFS = "fs-0b.fsx.us-east-1.amazonaws.com:/fsx {} nfs4 rw 0 0\n"
OTHER = "tmpfs / tmpfs rw 0 0\n10.0.0.1:/export /other nfs4 rw 0 0\nsystemd-1 /fsx autofs rw 0 0\n"


def place_with(room, config, mounts="", role="compute"):
    """A directory that plays a node, with these mounts and no file system named."""
    place = Place(room, role)
    place.put("config.json", json.dumps(config))
    place.put("provisioning_parameters.json", json.dumps(UNNAMED))
    table = place.root / "proc/self/mounts"
    table.parent.mkdir(parents=True)
    table.write_text(mounts)
    for line in mounts.splitlines():
        place.root.joinpath(line.split()[1].lstrip("/")).mkdir(parents=True, exist_ok=True)
    return place


@pytest.mark.parametrize(
    ("mounts", "cache"),
    [
        (OTHER + LUSTRE.format("/fsx"), "/fsx"),
        (OTHER + LUSTRE.format("/data"), "/data"),
        (LUSTRE.format("/data") + LUSTRE.format("/fsx"), "/fsx"),
        (OTHER + ZFS.format("/home"), "/tmp"),
    ],
)
def test_fsx_that_the_platform_mounted_is_used_as_if_it_were_named(tmp_path, mounts, cache):
    place = place_with(tmp_path, {"steps": {"find_fsx": "required"}}, mounts)
    enroot = place.root / "etc/enroot/enroot.conf"
    enroot.parent.mkdir(parents=True)
    enroot.write_text("")
    code, lines = place.run()
    assert code == 0, lines
    assert place.state("find_fsx")["state"] == "done"
    settings = [line.split() for line in enroot.read_text().splitlines()]
    assert ["ENROOT_CACHE_PATH", f"{cache}/enroot/cache"] in settings


def test_where_no_fsx_is_mounted_the_hint_is_reported(tmp_path):
    place = place_with(tmp_path, {"steps": {"find_fsx": "required"}}, OTHER)
    step = place.scripts / "lifecycle/steps/find_fsx.py"
    assert "FIND_S = 60.0" in step.read_text()
    step.write_text(step.read_text().replace("FIND_S = 60.0", "FIND_S = 0.1"))
    code, lines = place.run()
    assert code == 1
    assert "no FSx is mounted and none is named: give the instance group one" in lines[-1]
    place.put("provisioning_parameters.json", json.dumps(PARAMETERS))
    code, lines = place.run()
    assert code == 0, lines
    assert place.state("find_fsx")["why"] == "an FSx file system is named"


def test_who_logs_in_is_reported_where_they_are(tmp_path):
    place = place_with(tmp_path, {"steps": {"motd": "required"}})
    place.put("motd.txt", "Ask in #gpu-help.\n")
    for output in ("done in", "already done"):
        code, lines = place.run()
        assert code == 0, lines
        assert any(f"step=motd: {output}" in line for line in lines)
    assert (place.root / "etc/motd.d/hpctl").read_text().splitlines() == [
        "Cluster      demo",
        "Node         ip-10-9-1-20 (compute, group h100, ml.p5.48xlarge)",
        "Controllers  ip-10-9-0-5",
        "Ask in #gpu-help.",
    ]


SSSD = {"uri": "ldaps://ldap.example", "search_base": "dc=example,dc=org"}


as_root = [
    pytest.mark.slurm,
    pytest.mark.skipif(bool(chroot.missing()), reason=f"LIFECYCLE NOT TESTED: {chroot.missing()}"),
]
PLAYED = {
    "docker": ("docker.io", {"lib/systemd/system/docker.service": UNIT}, "groupadd -f docker\n"),
    "mount_s3": ("mount-s3", {"usr/bin/mount-s3": "#!/bin/sh\n"}, ""),
    "sssd": ("sssd-ldap", {"lib/systemd/system/sssd.service": UNIT}, "mkdir -p /etc/sssd\n"),
    "observability": (
        "prometheus-node-exporter",
        {"lib/systemd/system/prometheus-node-exporter.service": UNIT},
        "",
    ),
}
"""A package a step: its name, files, and what it does when it is installed."""
CONFIG = {
    "failure_wait_s": 0,
    "steps": {**dict.fromkeys(PLAYED, "required"), "accounting": "off"},
    "docker": {"data_path": "/opt/dlami/nvme"},
    "mount_s3": {"bucket": "train-data", "options": ["--read-only"]},
    "observability": {
        "exporters": ["node_exporter", "dcgm-exporter"],
        "args": {"slurm_exporter": ["--web.listen-address=:9341"]},
    },
    "sssd": {
        **SSSD, "bind_dn": "cn=hpc,dc=example,dc=org", "password_file": "/fsx/ldap.secret",
        "ca_file": "ca.pem", "allow_groups": ["ml", "ops"], "sudo_groups": ["ops"],
        "options": {"ldap_user_gecos": "cn"},
    },
}  # fmt: skip
SECRET = "not-to-be-printed"


def deb(target, name, files, postinst):
    """A package as dpkg-deb makes it."""
    tree = target.with_suffix("")
    control = (
        f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: t <t@t>\nDescription: t\n"
    )
    scripts = {"DEBIAN/control": control, "DEBIAN/postinst": "#!/bin/sh\nset -e\n" + postinst}
    for path, text in {**files, **scripts}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
        (tree / path).chmod(0o644 if path.endswith(("control", ".service")) else 0o755)
    made = run_text(["dpkg-deb", "--root-owner-group", "--build", str(tree), str(target)])
    assert made.returncode == 0, made.stderr
    shutil.rmtree(tree)


def lay(machine, room):
    """A bundle with all of it, its packages among them, and a machine that waits for it."""
    exporter = {"exporters/slurm_exporter": "#!/bin/sh\n", "ca.pem": "a certificate\n"}
    made = bundle(room / "b", **{"config.json": json.dumps(CONFIG), **exporter})
    for step, (name, files, postinst) in PLAYED.items():
        folder = made.directory / "debs" / step
        folder.mkdir(parents=True)
        deb(folder / f"{name}.deb", name, files, postinst)
    write_bundle_manifest(made.directory)
    furnish(machine, made)
    machine.write("/srv/lustre/ldap.secret", SECRET + "\n", 0o600)
    machine.write("/etc/apt/sources.list", "")  # no network, and none is needed


@pytest.fixture
def machine(tmp_path):
    with Machine(tmp_path / "machine") as clean:
        lay(clean, tmp_path)
        yield clean


def run(machine: Machine, role: str = "compute") -> tuple[int, str]:
    code, out = machine.run(*command(role), env=ENVIRONMENT)
    assert SECRET not in out
    return code, out


@as_root[0]
@as_root[1]
@pytest.mark.parametrize(
    "role", [r if r == "compute" else pytest.param(r, marks=pytest.mark.nightly) for r in ADDRESSES]
)
def test_each_installs_from_the_bundle_and_finds_it_done_the_next_time(machine, role):
    code, out = run(machine, role)
    assert code == 0, out
    ran = states(machine)
    assert {ran[step]["state"] for step in PLAYED} == {"done"}, out
    for check in (_docker, _mount_s3, _sssd):
        check(machine)
    units = ["prometheus-node-exporter"]
    units += ["hpctl-slurm_exporter"] if role == "controller" else []
    assert machine.says("systemctl", "is-enabled", *units) == "\n".join(["enabled"] * len(units))
    slurm = machine.path("/etc/systemd/system/hpctl-slurm_exporter.service")
    assert slurm.exists() == (role == "controller")
    if role == "controller":
        start = "ExecStart=/opt/hpctl/exporters/slurm_exporter --web.listen-address=:9341"
        assert {start, "DynamicUser=yes"} <= set(slurm.read_text().splitlines())
    code, out = run(machine, role)
    assert (code, " done in" in out) == (0, False), out
    # What somebody changes is put right by the next run.
    machine.write("/etc/docker/daemon.json", '{"debug": true}')
    machine.says("gpasswd", "--delete", "ubuntu", "docker")
    machine.says("sed", "-i", "s/ sss//", "/etc/nsswitch.conf")
    machine.says("systemctl", "disable", "hpctl-mount-s3", "prometheus-node-exporter")
    code, out = run(machine, role)
    assert code == 0, out
    assert json.loads(machine.path("/etc/docker/daemon.json").read_text())["debug"] is True
    for check in (_docker, _mount_s3, _sssd):
        check(machine)


def _docker(machine: Machine) -> None:
    conf = json.loads(machine.path("/etc/docker/daemon.json").read_text())
    assert conf["data-root"] == "/opt/dlami/nvme/docker/data-root"
    assert "docker" in machine.says("id", "--name", "--groups", "ubuntu").split()
    assert machine.says("systemctl", "is-enabled", "docker") == "enabled"


def _mount_s3(machine: Machine) -> None:
    unit = machine.path("/etc/systemd/system/hpctl-mount-s3.service").read_text()
    start = "ExecStart=/usr/bin/mount-s3 --allow-other --read-only train-data /mnt/s3"
    assert start in unit.splitlines()
    assert machine.path("/mnt/s3").is_dir()
    assert machine.says("systemctl", "is-enabled", "hpctl-mount-s3") == "enabled"


def _sssd(machine: Machine) -> None:
    conf = machine.path("/etc/sssd/sssd.conf")
    assert conf.stat().st_mode & 0o777 == 0o600
    assert {
        "ldap_uri = ldaps://ldap.example", "ldap_search_base = dc=example,dc=org",
        "ldap_default_bind_dn = cn=hpc,dc=example,dc=org", f"ldap_default_authtok = {SECRET}",
        "ldap_tls_cacert = /etc/sssd/hpctl-ca.pem", "ldap_id_use_start_tls = False",
        "simple_allow_groups = ml, ops", "ldap_user_gecos = cn",
    } <= set(conf.read_text().splitlines())  # fmt: skip
    nss = machine.path("/etc/nsswitch.conf").read_text().splitlines()
    assert [line.split()[-1] for line in nss if line.startswith(("passwd:", "group:"))] == (
        ["sss", "sss"]
    )
    assert "pam_mkhomedir.so" in machine.path("/etc/pam.d/common-session").read_text()
    sudo = machine.path("/etc/sudoers.d/hpctl-sssd")
    assert (sudo.read_text(), sudo.stat().st_mode & 0o777) == (
        "%ops ALL=(ALL:ALL) NOPASSWD:ALL\n",
        0o440,
    )
    assert machine.says("systemctl", "is-enabled", "sssd") == "enabled"
