"""The manual pages: one of each command, which man takes without a complaint."""

import gzip
import shutil
import subprocess

import pytest

from docgen.generate import PAGES
from hpctl.cli.main import COMMANDS, EXTRAS
from tests.architecture.source import ROOT
from tests.architecture.test_distributions import list_shared
from tests.cli.install.package import load_build

MANUAL = PAGES / "man"
WRITTEN = sorted(MANUAL.iterdir())


def test_every_command_of_this_distribution_has_a_page_and_nothing_else_has():
    names = {"hpctl", *(f"hpctl-{name}" for name in COMMANDS if name not in EXTRAS)}
    assert {page.name for page in WRITTEN} == {f"{name}.1" for name in names}


def test_the_wheel_installs_the_pages_where_man_looks():
    assert list_shared(ROOT) == {f"share/man/man1/{page.name}" for page in WRITTEN}


def test_the_debian_package_has_them_compressed(tmp_path):
    load_build().add_manual(tmp_path / "man1")
    packed = {
        path.name: gzip.decompress(path.read_bytes()) for path in (tmp_path / "man1").iterdir()
    }
    assert packed == {f"{page.name}.gz": page.read_bytes() for page in WRITTEN}


def read_page(name: str) -> str:
    """A page as man shows it."""
    command = ["man", "--warnings", "-l", str(MANUAL / name)]
    env = {"LC_ALL": "C.UTF-8", "MANWIDTH": "200", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.skipif(shutil.which("man") is None, reason="there is no man")
def test_man_shows_options_code_and_text_as_the_help_has_them():
    assert "--dry-run\n" in read_page("hpctl-approve.1")
    assert "hpctl checkpoint progress > hpctl_progress.py" in read_page("hpctl-checkpoint.1")
    assert "hpctl(1)" in read_page("hpctl-cluster.1")
    first = read_page("hpctl.1")
    assert (
        first.index("hpctl status") < first.index("hpctl explain NODE") < first.index("\nOPTIONS")
    )


LINTERS = [
    linter
    for linter in (
        ["mandoc", "-Tlint", "-Werror"],
        ["groff", "-man", "-ww", "-Tutf8", "-z", "-Kutf8"],
    )
    if shutil.which(linter[0])
]


@pytest.mark.parametrize("linter", LINTERS, ids=lambda words: words[0])
def test_no_page_has_an_error_of_markup(linter):
    done = subprocess.run(
        [*linter, *map(str, WRITTEN)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
