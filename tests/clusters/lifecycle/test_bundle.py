"""Bundles: the same content gives the same digest, what would keep a node down is found here."""

import importlib.metadata
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from hpctl.cli.main import cli
from hpctl.clusters import bundle as bundles
from hpctl.clusters.bundle_checks import find_bundle_problems
from hpctl.clusters.bundle_wheels import repack_installed_wheel
from hpctl.toolkit.errors import HpctlError
from tests.clusters.lifecycle.node import bundle
from tests.process import run_text

pytestmark = pytest.mark.integration


def output(directory: Path) -> list[str]:
    return [f"{problem.path} {problem.what}" for problem in find_bundle_problems(directory)]


def test_the_default_scripts_have_no_problem_and_one_digest(tmp_path) -> None:
    one, other = bundle(tmp_path / "one"), bundle(tmp_path / "other")
    assert output(one.directory) == []
    assert one.digest == other.digest
    assert bundles.read_lifecycle_bundle(one.directory) == one
    checked = subprocess.run(
        ["sha256sum", "--check", "--quiet", "--strict", "MANIFEST"],
        cwd=one.directory,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0


def test_a_place_that_cannot_be_written_is_one_message(tmp_path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file" / "bundle", Path("/dev/full/bundle")):
        result = CliRunner().invoke(cli, ["cluster", "lifecycle", "bundle", "-o", str(place)])
        assert isinstance(result.exception, HpctlError)
        assert f"cannot create {place}" in str(result.exception)


def test_a_changed_a_new_and_a_missing_file_are_named(tmp_path) -> None:
    made = bundle(tmp_path / "b").directory
    (made / "config.json").write_text("{}")
    (made / "more.txt").write_text("")
    (made / "systemd/hpctl.slice").unlink()
    with pytest.raises(
        HpctlError, match=r"MANIFEST in config\.json, more\.txt, systemd/hpctl\.slice"
    ):
        bundles.read_lifecycle_bundle(made)
    with pytest.raises(HpctlError, match="is not a lifecycle bundle: MANIFEST is missing"):
        bundles.read_lifecycle_bundle(tmp_path)


BROKEN = {
    "site.d/a.sh": ("#!/bin/sh\r\necho\r\n", "has CRLF line ends (line 1)"),
    "site.d/b.sh": ("echo\n", "has no shebang in its first line"),
    "site.d/c.sh": ("#!/bin/sh\nif true; then\n", "sh -n: c.sh: 3: Syntax error: end of file"),
    "site.d/d.sh": ("#!/bin/bash\nif true; then\n", "bash -n: c.sh: line 3: syntax error"),
    "more.py": ("match 1:\n    case 1: pass\n", "line 2: not Python 3.8: Pattern matching is only"),
    "provisioning_parameters.json": ("{", "not JSON: Expecting property name enclosed in double"),
    "config.json": ('{"step": 1}', "config.json step: no such key; did you mean steps?"),
    "shared_users.txt": ("ada;1\n", "shared_users.txt line 1: not name,uid,home: 'ada;1'"),
    "wheels/x.tar.gz": ("", "x.tar.gz is no wheel: a node has nothing to build it with"),
    "python.tar.gz": ("no archive", "python.tar.gz cannot be unpacked: "),
    "a\nb": ("", "has a name that a MANIFEST cannot hold"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_would_keep_nodes_down_is_found_before(tmp_path, name: str) -> None:
    made = bundle(tmp_path / "b").directory
    text, what = BROKEN[name]
    path = made / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(text.encode())
    path.chmod(0o755)
    assert what in "\n".join(output(made)).replace("d.sh: line", "c.sh: line")


def test_wheels_without_hpctl_or_pip_are_found(tmp_path) -> None:
    made = bundle(tmp_path / "b").directory
    (made / "wheels").mkdir()
    (made / "wheels/click-8.0-py3-none-any.whl").write_text("")
    assert output(made) == [
        "wheels the bundle needs hpctl: no wheel of it is there",
        "wheels the bundle needs pip: no wheel of it is there",
    ]


def test_additions_lie_at_the_top_and_nothing_else_is_overwritten(tmp_path) -> None:
    (tmp_path / "site.d").mkdir()
    (tmp_path / "site.d/1.sh").write_text("#!/bin/sh\n")
    (tmp_path / "site.d/__pycache__").mkdir()
    (tmp_path / "site.d/__pycache__/x.pyc").write_text("")
    (tmp_path / "users.json").write_text("{}")
    made = tmp_path / "b"
    made.mkdir()
    additions = [tmp_path / "site.d", tmp_path / "users.json"]
    bundles.write_bundle_files(made, bundles.LifecycleBundleAdditions(additions=additions))
    assert os.access(made / "site.d/1.sh", os.X_OK)
    assert (made / "users.json").is_file()
    assert not list(made.rglob("*.pyc"))
    with pytest.raises(HpctlError, match="exists and is not a lifecycle bundle"):
        bundles.require_replaceable_bundle_directory(tmp_path)
    bundles.write_bundle_manifest(made)
    bundles.require_replaceable_bundle_directory(made)


def test_a_wheel_is_made_again_from_what_is_installed(tmp_path) -> None:
    """pip installs it, without a network, and finds the same files."""
    for name in ("click", "msgspec", "pip"):
        repack_installed_wheel(importlib.metadata.distribution(name), tmp_path)
    (pip,) = tmp_path.glob("pip-*.whl")
    (binary,) = tmp_path.glob("msgspec-*.whl")
    assert f"-cp{sys.version_info.major}{sys.version_info.minor}-" in binary.name
    target = tmp_path / "target"
    done = run_text(
        [
            *(sys.executable, str(pip / "pip"), "install", "--no-index", "--no-cache-dir"),
            *("--quiet", "--find-links", str(tmp_path), "--target", str(target)),
            *("click", "msgspec"),
        ]
    )
    assert done.returncode == 0, done.stderr
    assert (target / "click/__init__.py").is_file()
    with zipfile.ZipFile(binary) as wheel:
        assert wheel.testzip() is None


def test_the_settings_that_are_default_are_the_defaults() -> None:
    from tests.clusters.lifecycle.test_runner import SCRIPTS

    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from lifecycle.config import DEFAULTS;"
        "print(json.dumps(DEFAULTS))"
    )
    out = subprocess.run(
        [sys.executable, "-IBc", code, str(SCRIPTS)], capture_output=True, timeout=60, check=True
    ).stdout
    assert json.loads(out) == json.loads((SCRIPTS / "config.json").read_text())
