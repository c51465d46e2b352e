"""The shipped units: what they start exists, and what they take away no check needs."""

import re
import shlex
import shutil
from pathlib import Path

import click
import pytest

from hpctl.cli.main import cli
from hpctl.detection import settings
from hpctl.detection.outside.ask import SOCKET
from hpctl.wire.heads import DEFAULT_PORT, SLURM_USER
from tests.process import run_text

UNITS = Path(__file__).resolve().parents[2] / "lifecycle_scripts/systemd"
SERVICES = sorted(UNITS.glob("*.service"))
PROGRAM = "/opt/hpctl/bin/hpctl"


def rows(unit: Path) -> list[tuple[str, str]]:
    """The unit's settings in order, without its comments."""
    lines = (line.strip() for line in unit.read_text().splitlines())
    return [
        (key, value)
        for key, equals, value in (line.partition("=") for line in lines if line[:1] not in "#[")
        if equals
    ]


def settings_of(name: str) -> dict[str, str]:
    return dict(rows(UNITS / name))


def started(unit):
    """Each command of ours that the unit runs, and the words after its name."""
    for key, value in rows(unit):
        if not key.startswith("Exec"):
            continue
        program, *args = shlex.split(value)
        if key == "ExecReload":
            assert [program, *args] == ["/bin/kill", "-HUP", "$MAINPID"]
            continue
        assert program == PROGRAM
        command: click.Command = cli
        context = click.Context(cli)
        while isinstance(command, click.Group):
            found = command.get_command(context, args[0])
            assert found is not None, f"{unit.name}: hpctl has no command {args[0]}"
            command, args = found, args[1:]
        yield command, args


def options(command: click.Command) -> list[click.Option]:
    return [p for p in command.params if isinstance(p, click.Option)]


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_what_a_unit_starts_takes_these_options(unit: Path) -> None:
    commands = list(started(unit))
    assert commands
    for command, args in commands:
        known = {name for option in options(command) for name in option.opts}
        used = {word.partition("=")[0] for word in args if word.startswith("-")}
        assert used <= known, f"{unit.name}: {command.name} has no {used - known}"
        environment = {str(option.envvar) for option in options(command) if option.envvar}
        needed = {
            str(option.envvar)
            for option in options(command)
            if option.required and not used & set(option.opts)
        }
        reported = set(re.findall(r"HPCTL_[A-Z_]*[A-Z]\b(?!_)", unit.read_text()))
        assert needed <= reported, f"{unit.name} does not say that {needed - reported} must be set"
        assert reported - {"HPCTL_AGENT"} <= environment


def test_what_texts_say_to_systemctl_it_can_do() -> None:
    house = UNITS.parents[1]
    files = [house / "README.md", *house.glob("docs/*.md"), *house.glob("hpctl/**/*.py")]
    asked = {
        found
        for file in files
        for found in re.findall(r"systemctl ([a-z]+) (hpctl[\w.-]*\w)", file.read_text())
    }
    assert ("reload", "hpctl-daemon") in asked
    for verb, name in sorted(asked):
        unit = UNITS / (name if name.endswith(".socket") else f"{name}.service")
        assert unit.exists(), f"{verb} {name}"
        assert verb != "reload" or "ExecReload" in dict(rows(unit)), f"{verb} {name}"


def test_the_agents_folders_are_where_it_looks_for_them() -> None:
    unit = settings_of("hpctl-agent.service")
    assert f"/var/lib/{unit['StateDirectory']}" == str(settings.SPOOL)
    assert f"/run/{unit['RuntimeDirectory']}" == str(Path(SOCKET).parent)
    assert "StateDirectory" in settings_of("hpctl-daemon.service")


def test_the_agent_may_what_its_checks_need() -> None:
    unit = settings_of("hpctl-agent.service")
    # Each of these takes a device, the kernel's log or other users' tasks away from a check.
    never = {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock", "ProtectKernelLogs"}
    assert not never & set(unit)
    assert not {"ProtectProc", "ProcSubset", "PrivateNetwork", "User"} & set(unit)
    # Hidden home directories would hide the network file systems that are mounted there.
    assert unit["ProtectHome"] == "read-only"
    # A child inside a call of NVIDIA's driver is never killed.
    assert unit["KillMode"] == "process"


def test_the_daemon_is_slurms_user_without_a_capability() -> None:
    unit = settings_of("hpctl-daemon.service")
    # In its own group, whatever that is called: a group that is missing keeps it from starting.
    assert (unit["User"], "Group" in unit) == (SLURM_USER, False)
    assert unit["CapabilityBoundingSet"] == ""
    assert "AmbientCapabilities" not in unit
    # No command of it is run with more: systemd's prefixes for that.
    assert not [value for key, value in unit.items() if key[:4] == "Exec" and value[0] in "-+!@:"]
    # Others read the copy of the journal, and lock nothing that the daemon writes.
    assert (unit["StateDirectoryMode"], unit["UMask"]) == ("0711", "0077")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_knows_every_setting(tmp_path) -> None:
    for unit in UNITS.iterdir():
        (tmp_path / unit.name).write_text(unit.read_text().replace(PROGRAM, "/bin/true"))
    for unit in UNITS.iterdir():
        done = run_text(
            ["systemd-analyze", "verify", "--man=no", f"./{unit.name}"],
            cwd=tmp_path,
            env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "LC_ALL": "C", "PATH": "/usr/bin:/bin"},
        )
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_unit_exposes_little(unit: Path) -> None:
    done = run_text(
        ["systemd-analyze", "security", "--offline=true", "--threshold=40", str(unit)],
        env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, done.stdout[-200:]


def test_the_port_is_systemds_while_no_daemon_runs() -> None:
    service, socket = settings_of("hpctl-daemon.service"), settings_of("hpctl-daemon.socket")
    assert service["Requires"] == service["Also"] == "hpctl-daemon.socket"
    # A service that systemd gives up on takes its socket with it.
    assert service["StartLimitIntervalSec"] == "0"
    assert socket["ListenStream"].endswith(f":{DEFAULT_PORT}")
