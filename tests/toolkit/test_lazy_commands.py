"""A group whose commands are imported on demand."""

from click.testing import CliRunner

from hpctl.toolkit.lazy_commands import LazyCommandGroup

GROUP = LazyCommandGroup(
    name="hpctl",
    table={"sandbox": ("hpctl.no_such_room.command:sandbox", "A sandbox.")},
    extras={"sandbox": "pip install 'hpctl[sandbox]'"},
)


def test_a_command_whose_extra_is_not_installed_says_how_to_install_it():
    result = CliRunner().invoke(GROUP, ["sandbox", "up"])
    assert result.exit_code == 1
    assert "sandbox is not installed: pip install 'hpctl[sandbox]'" in result.output


def test_the_help_lists_a_command_whose_extra_is_not_installed():
    result = CliRunner().invoke(GROUP, ["--help"])
    assert result.exit_code == 0
    assert "A sandbox." in result.output


def test_completion_survives_a_command_whose_extra_is_not_installed():
    words = {"COMP_WORDS": "hpctl sandbox ", "COMP_CWORD": "2"}
    environment = {"_HPCTL_COMPLETE": "bash_complete", **words}
    result = CliRunner().invoke(GROUP, [], prog_name="hpctl", env=environment)
    assert isinstance(result.exception, SystemExit | None)
