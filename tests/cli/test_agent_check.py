"""`hpctl agent check`: one look at everything, in words, in JSON and as an exit code."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from hpctl.agent.kmsg import format_record
from tests.process import run_text
from tests.sysfs_tree import SysfsTree

LINE = "NVRM: Xid (PCI:0000:c1:00): 79, pid=1, GPU has fallen off the bus."


def check(*options: str, root: Path | None = None) -> subprocess.CompletedProcess[str]:
    here = ["--root", str(root)] if root is not None else []
    return run_text(
        [sys.executable, "-m", "hpctl", "agent", "check", *here, *options],
        env={**os.environ, "COLUMNS": "200"},
    )


def test_the_kernels_log(tmp_path: Path) -> None:
    kmsg = tmp_path / "kmsg"
    kmsg.touch()
    args = ("--only", "kernel", "--kmsg", str(kmsg))
    clean = check(*args)
    assert (clean.returncode, "kernel  ok" in clean.stdout) == (0, True), clean.stdout
    kmsg.write_bytes(format_record(LINE, 1) + format_record(LINE, 2))
    seen = check(*args)
    assert seen.returncode == 1
    text = r"kernel\.xid +fail +0000:c1:00\.0 +79: .*fallen off the bus.*2 times"
    assert re.search(text, seen.stdout)
    (shown,) = json.loads(check(*args, "--json").stdout)["checks"]
    (row,) = shown["findings"]
    assert (row["code"], row["count"], row["verdict"]) == ("79", 2, "fail")
    away = check("--only", "kernel", "--kmsg", str(tmp_path / "none"))
    assert (away.returncode, "--kmsg" in away.stdout) == (3, True)


def test_what_is_missing_is_absent_and_what_is_wrong_fails(tmp_path: Path) -> None:
    bare = check("--only", "efa", root=tmp_path)
    assert bare.returncode == 0
    assert "absent" in bare.stdout
    SysfsTree(tmp_path).add_efas(3)
    config = tmp_path / "agent.yaml"
    config.write_text("expected: {efa_devices: 4}\n")
    short = check("--only", "efa.devices", "--config", str(config), root=tmp_path)
    assert short.returncode == 1
    assert re.search(r"efa\.devices +fail", short.stdout)


def test_a_sites_own_check_is_run_too(tmp_path: Path) -> None:
    plugin = tmp_path / "room.sh"
    plugin.write_text('#!/bin/sh\necho "{\\"findings\\": [{\\"code\\": \\"hot\\"}]}"\n')
    plugin.chmod(0o755)
    tmp_path.chmod(0o755)
    seen = check("--only", "plugin", "--plugins", str(tmp_path))
    assert seen.returncode == 1, seen.stdout + seen.stderr
    assert re.search(r"plugin\.room +fail +hot", seen.stdout)


def test_names_and_files_that_are_wrong_are_told_with_the_fix(tmp_path: Path) -> None:
    name = check("--only", "efa.devcies")
    assert name.returncode == 2
    assert "efa.devices" in name.stderr
    config = tmp_path / "agent.yaml"
    config.write_text("checks: {host.dsik: {}}\n")
    file = check("--only", "host", "--config", str(config))
    assert file.returncode == 1
    assert "Did you mean host.disk" in file.stderr


def test_this_machine_can_be_looked_at_whole() -> None:
    whole = check("--json")
    assert whole.returncode in (0, 1, 3), whole.stderr
    states = {row["check"]: row["state"] for row in json.loads(whole.stdout)["checks"]}
    assert len(states) > 30
    assert states["host.disk"] != "absent"
