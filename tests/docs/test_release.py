"""`make release` refuses a tree that is not ready, and says why."""

import hashlib
import re
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


def git(root: Path, *words: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    subprocess.run(["git", "-C", str(root), *author, *words], check=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Files that name one version, and a changelog, committed."""
    lines = {
        "pyproject.toml": f'version = "{VERSION}"\nsandbox = ["hpctl-sandbox=={VERSION}"]\n',
        "hpctl/client/pyproject.toml": f'version = "{VERSION}"\n',
        "hpctl/sandbox/pyproject.toml": f'version = "{VERSION}"\n    "hpctl=={VERSION}",\n',
        "hpctl/__init__.py": f'__version__ = "{VERSION}"\n',
        "CHANGELOG.md": CHANGELOG,
    }
    for name, text in lines.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--message", "project: begin")
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


@pytest.mark.parametrize(("name", "pattern"), release.VERSION_PLACES)
def test_each_file_that_names_the_version_is_compared(project, name, pattern):
    assert release.read_version(project) == VERSION
    path = project / name
    match = re.search(pattern, path.read_text(), re.MULTILINE)
    path.write_text(path.read_text().replace(match[0], match[0].replace(VERSION, "9.9")))
    with pytest.raises(release.NotReady, match=rf"{name}: 9\.9"):
        release.read_version(project)
    path.write_text("[project]\n")
    with pytest.raises(release.NotReady, match=rf"{name} has no line like"):
        release.read_version(project)


def test_the_files_of_this_tree_name_one_version():
    assert release.read_version(release.ROOT)


def test_a_version_is_set_in_each_file(project):
    release.set_version(project, "2.0.0")
    assert release.read_version(project) == "2.0.0"


def test_unreleased_lines_get_a_version_and_a_date():
    unreleased = "### Added\n\n- New.\n\n### Fixed\n\n- Mended."
    changelog = CHANGELOG.replace("[Unreleased]\n", f"[Unreleased]\n\n{unreleased}\n")
    folded = release.fold_unreleased(changelog, "1.3.0", "2026-12-01")
    section = f"## [Unreleased]\n\n## [1.3.0] - 2026-12-01\n\n{unreleased}\n"
    assert folded == CHANGELOG.replace("## [Unreleased]\n", section)
    assert release.read_notes(folded, "1.3.0") == f"{unreleased}\n"


def test_a_section_that_was_not_released_keeps_its_lines():
    unreleased = "### Fixed\n\n- Mended.\n\n### Added\n\n- Another."
    changelog = CHANGELOG.replace("[Unreleased]\n", f"[Unreleased]\n\n{unreleased}\n")
    folded = release.fold_unreleased(changelog, VERSION, "2026-12-01")
    notes = "### Added\n\n- A command.\n- Another.\n\n### Fixed\n\n- Mended.\n"
    assert release.read_notes(folded, VERSION) == notes
    assert "## [1.2.3] - 2026-12-01" in folded
    assert folded.endswith("## [1.2.2] - 2026-11-01\n\n- An older line.\n")


def test_the_first_release_has_nothing_to_compare_with():
    changelog = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- A.\n\n### Changed\n\n- B.\n"
    folded = release.fold_unreleased(changelog, "0.1.0", "2026-12-01")
    assert release.read_notes(folded, "0.1.0") == "### Added\n\n- A.\n"


def test_a_project_is_prepared_for_the_next_version(project, capsys):
    path = project / "CHANGELOG.md"
    path.write_text(CHANGELOG.replace("[Unreleased]\n", "[Unreleased]\n\n- New.\n"))
    assert release.prepare(project, "2.0.0") == 0
    assert release.read_version(project) == "2.0.0"
    assert release.read_notes(path.read_text(), "2.0.0") == "- New.\n"
    assert "Prepared 2.0.0" in capsys.readouterr().out


def test_a_tag_of_another_commit_is_refused(project):
    release.check_tag(project, VERSION)
    git(project, "tag", "--annotate", "--message", "notes", f"v{VERSION}")
    release.check_tag(project, VERSION)
    git(project, "commit", "--allow-empty", "--message", "project: go on")
    release.check_tag(project, "1.2.4")
    with pytest.raises(release.NotReady, match=r"tag v1\.2\.3 names another commit"):
        release.check_tag(project, VERSION)


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


def test_a_library_that_notice_does_not_name_is_refused():
    notice = "Required by these:\nh11 (MIT), typing-extensions (PSF-2.0)"
    wheels = ["hpctl-1.2.3-py3-none-any.whl", "typing_extensions-4.16.0-py3-none-any.whl"]
    release.check_notice(notice, wheels)
    with pytest.raises(release.NotReady, match="NOTICE does not name greenlet"):
        release.check_notice(notice, [*wheels, "greenlet-3.5.6-cp310-cp310-linux_x86_64.whl"])


def test_the_wheels_of_a_package_are_listed(tmp_path):
    control = (
        "Package: a\nVersion: 1\nArchitecture: all\nMaintainer: a <a@localhost>\nDescription: a\n"
    )
    files = {"DEBIAN/control": control, "usr/lib/a-1-py3-none-any.whl": "", "usr/lib/id": ""}
    for name, text in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text(text)
    package = tmp_path / "a.deb"
    subprocess.run(["dpkg-deb", "--build", str(tmp_path / "tree"), str(package)], check=True)
    assert release.list_wheels(package) == {"a-1-py3-none-any.whl"}
