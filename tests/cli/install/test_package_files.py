"""What the Debian package holds beside the wheels, written without building it."""

import gzip

import pytest

from tests.architecture.source import ROOT
from tests.cli.install.package import load_build
from tests.process import run_text

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def share(tmp_path_factory):
    room = tmp_path_factory.mktemp("share")
    load_build().add_completions(room)
    return room


def test_bash_completes_after_it_reads_the_file(share):
    script = share / "bash-completion/completions/hpctl"
    done = run_text(["bash", "--norc", "-c", 'source "$1"; complete -p hpctl', "bash", str(script)])
    assert (done.returncode, done.stderr) == (0, "")
    assert "-F _hpctl_completion hpctl" in done.stdout


def test_zsh_finds_the_file_by_its_name_and_first_line(share):
    script = share / "zsh/vendor-completions/_hpctl"
    assert script.read_text().startswith("#compdef hpctl\n")


def test_fish_registers_the_command(share):
    script = share / "fish/vendor_completions.d/hpctl.fish"
    assert "complete --no-files --command hpctl " in script.read_text()


def test_license_notice_and_changelog_are_among_the_documents(tmp_path):
    load_build().add_documents(tmp_path / "hpctl")
    held = {path.name: path.read_bytes() for path in (tmp_path / "hpctl").iterdir()}
    changelog = gzip.decompress(held.pop("changelog.gz"))
    assert changelog == (ROOT / "CHANGELOG.md").read_bytes()
    assert held == {
        "copyright": (ROOT / "LICENSE").read_bytes(),
        "NOTICE": (ROOT / "NOTICE").read_bytes(),
    }
