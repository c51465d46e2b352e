"""`make release` refuses a tree that is not ready, and says why."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from tools import release

VERSION = "1.2.3"
CHANGELOG = """# Changelog

## [Unreleased]

## [1.2.3] - 2026-11-28

### Added

- A command.

## [1.2.2] - 2026-11-01

- An older line.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Three projects of one version, committed."""
    for name in release.PROJECTS:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        (tmp_path / name / "pyproject.toml").write_text(f'[project]\nversion = "{VERSION}"\n')
    for words in (["init"], ["add", "."], ["commit", "--message", "project: begin"]):
        author = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
        subprocess.run(["git", "-C", str(tmp_path), *author, *words], check=True)
    return tmp_path


def test_notes_are_the_section_of_the_version():
    assert release.read_notes(CHANGELOG, VERSION) == "### Added\n\n- A command.\n"


def test_notes_of_the_last_section_end_with_the_file():
    assert release.read_notes(CHANGELOG, "1.2.2") == "- An older line.\n"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("## [Unreleased]\n", "## [Unreleased]\n\n- A new line.\n", r"lines under \[Unreleased\]"),
        ("## [1.2.3] - 2026-11-28", "## [1.2.4] - 2026-11-28", "no section"),
        ("## [1.2.3] - 2026-11-28", "## [1.2.3]", "no date"),
        ("### Added\n\n- A command.\n", "", "has 0 words"),
        ("- A command.", "- word" * (release.MOST_WORDS + 1), "words"),
    ],
)
def test_notes_that_are_not_ready_are_refused(old, new, why):
    with pytest.raises(release.NotReady, match=why):
        release.read_notes(CHANGELOG.replace(old, new), VERSION)


def test_projects_share_one_version(project):
    assert release.read_version(project) == VERSION
    path = project / "hpctl/client/pyproject.toml"
    path.write_text(path.read_text().replace(VERSION, "9.9"))
    with pytest.raises(release.NotReady, match=r"hpctl/client: 9\.9"):
        release.read_version(project)
    path.write_text("[project]\n")
    with pytest.raises(release.NotReady, match=r"hpctl/client/pyproject.toml has no line"):
        release.read_version(project)


def test_the_projects_of_this_tree_share_one_version():
    assert release.read_version(release.ROOT)


def test_a_tree_with_changes_is_refused(project):
    release.check_tree(project)
    (project / "new").touch()
    with pytest.raises(release.NotReady, match=r"1 files differ from the commit \(\?\? new\)"):
        release.check_tree(project)


def test_sums_are_those_of_sha256sum(tmp_path):
    (tmp_path / "a.whl").write_bytes(b"wheel")
    (tmp_path / "SHA256SUMS").write_text("of the build before\n")
    release.write_sums(tmp_path)
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert (tmp_path / "SHA256SUMS").read_text() == f"{digest}  a.whl\n"
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=True)
