"""`hpctl agent check`: one look at everything, in words, in JSON and as an exit code."""

import json
import os
import re
import sys

import pytest

from hpctl.detection.kmsg import format_kmsg_record
from tests.gpu.recordings import read_text
from tests.process import run_text
from tests.sysfs_tree import EmulatedSysfsTree

pytestmark = pytest.mark.integration

LINE = "NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus."


def check(*options, root=None):
    here = ["--root", str(root)] if root is not None else []
    return run_text(
        [sys.executable, "-m", "hpctl", "agent", "check", *here, *options],
        env={**os.environ, "COLUMNS": "200"},
    )


def test_the_kernels_log(tmp_path) -> None:
    kmsg = tmp_path / "kmsg"
    kmsg.touch()
    args = ("--only", "kernel", "--kmsg", str(kmsg))
    clean = check(*args)
    assert (clean.returncode, "kernel  ok" in clean.stdout) == (0, True), clean.stdout
    kmsg.write_bytes(format_kmsg_record(LINE, 1) + format_kmsg_record(LINE, 2))
    seen = check(*args)
    assert seen.returncode == 1
    text = r"kernel\.xid +fail +0000:c1:00\.0 +79: .*fallen off the bus.*2 times"
    assert re.search(text, seen.stdout)
    (shown,) = json.loads(check(*args, "--json").stdout)["checks"]
    (row,) = shown["findings"]
    assert (row["code"], row["count"], row["verdict"]) == ("79", 2, "fail")
    away = check("--only", "kernel", "--kmsg", str(tmp_path / "none"))
    assert (away.returncode, "--kmsg" in away.stdout) == (3, True)


def test_a_programs_own_xid_is_no_failed_check(tmp_path) -> None:
    """kmsg-boot-driver.txt, kmsg-crashes.txt: what `hpctl agent triage` calls healthy exits 0."""
    kmsg = tmp_path / "kmsg"
    kmsg.write_text(read_text("kmsg-boot-driver.txt") + read_text("kmsg-crashes.txt"))
    args = ("--only", "kernel", "--kmsg", str(kmsg))
    seen = check(*args)
    assert seen.returncode == 0
    assert re.search(r"kernel +note +.*the node stays in service", seen.stdout.replace("\n", " "))
    for code in ("13", "31", "43"):
        assert re.search(rf"kernel\.xid +note +0000:00:06\.0 +{code}: NVRM: Xid", seen.stdout)
    (row,) = json.loads(check(*args, "--json").stdout)["checks"]
    assert (row["state"], {f["verdict"] for f in row["findings"]}) == ("note", {"note"})
    assert {(f["code"], f["count"]) for f in row["findings"]} == {("13", 9), ("31", 2), ("43", 4)}
    kmsg.write_text(read_text("kmsg-boot-driver.txt"))
    assert "kernel  ok" in check(*args).stdout


def test_the_log_is_judged_together_as_by_triage(tmp_path) -> None:
    """Of a context-switch timeout only the second closes the node; the driver's word may clear."""
    kmsg = tmp_path / "kmsg"
    args = ("--only", "kernel", "--kmsg", str(kmsg), "--json")
    xid = "c;NVRM: Xid (PCI:0000:c1:00)"
    again = f"4,1,1000000,{xid}: 109, pid=7, CTX\n4,2,900000000,{xid}: 109, pid=8, CTX\n"
    cleared = (
        f"4,1,1000000,{xid}: 94, pid=7, Contained\n"
        f"4,2,1100000,{xid}: 154, GPU recovery action changed from 0x1 (GPU Reset Required) "
        "to 0x0 (None)\n"
    )
    for text, exit_code, state in ((again, 1, "fail"), (cleared, 0, "note")):
        kmsg.write_text(text)
        seen = check(*args)
        (row,) = json.loads(seen.stdout)["checks"]
        assert (seen.returncode, row["state"]) == (exit_code, state), row


def test_what_is_missing_is_absent_and_what_is_wrong_fails(tmp_path) -> None:
    bare = check("--only", "efa", root=tmp_path)
    assert bare.returncode == 0
    assert "absent" in bare.stdout
    EmulatedSysfsTree(tmp_path).add_p5_efa_devices(3)
    config = tmp_path / "agent.yaml"
    config.write_text("expected: {efa_devices: 4}\n")
    short = check("--only", "efa.devices", "--config", str(config), root=tmp_path)
    assert short.returncode == 1
    assert re.search(r"efa\.devices +fail", short.stdout)


def test_a_sites_own_check_is_run_too(tmp_path) -> None:
    plugin = tmp_path / "room.sh"
    plugin.write_text('#!/bin/sh\necho "{\\"findings\\": [{\\"code\\": \\"hot\\"}]}"\n')
    plugin.chmod(0o755)
    tmp_path.chmod(0o755)
    seen = check("--only", "plugin", "--plugins", str(tmp_path))
    assert seen.returncode == 1, seen.stdout + seen.stderr
    assert re.search(r"plugin\.room +fail +hot", seen.stdout)


def test_names_and_files_that_are_wrong_are_reported_with_the_fix(tmp_path) -> None:
    name = check("--only", "efa.devcies")
    assert name.returncode == 2
    assert "efa.devices" in name.stderr
    config = tmp_path / "agent.yaml"
    config.write_text("checks: {host.dsik: {}}\n")
    file = check("--only", "host", "--config", str(config))
    assert file.returncode == 1
    assert "did you mean 'host.disk'?" in file.stderr


def test_this_machine_can_be_looked_at_whole() -> None:
    whole = check("--json")
    assert whole.returncode in (0, 1, 3), whole.stderr
    states = {row["check"]: row["state"] for row in json.loads(whole.stdout)["checks"]}
    assert len(states) > 30
    assert states["host.disk"] != "absent"
