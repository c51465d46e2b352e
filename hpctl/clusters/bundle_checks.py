"""What can be known of a bundle before a node pays for it.

Running a bundle as a node of each role would, below a directory and as an ordinary process.
"""

import ast
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct

from hpctl.clusters import bundle_wheels
from hpctl.clusters.bundle import ENTRY_POINTS, PYTHON, WHEELS
from hpctl.toolkit.declared_view import Column, Columns, JsonOnly, Layout, RowTable, TextLine
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.tables import BAD, GOOD, WARN

PYTHON_FLOOR = (3, 8)
"""Of Ubuntu 20.04, the oldest AMI."""

LARGEST_FILE = 1 << 30
LARGEST = 4 << 30
"""Bytes. Each new node downloads all of it before it does anything."""


class BundleProblem(Struct, frozen=True):
    """One thing that would keep nodes from coming up, and where."""

    path: str
    what: str


def find_bundle_problems(directory: Path) -> tuple[BundleProblem, ...]:
    """Return everything that is wrong with a bundle's files."""
    found = [
        BundleProblem(name, "is not there")
        for name in ENTRY_POINTS
        if not (directory / name).is_file()
    ]
    total = 0
    for path in sorted(p for p in directory.rglob("*") if p.is_file()):
        name = path.relative_to(directory).as_posix()
        total += path.stat().st_size
        found += [BundleProblem(name, what) for what in _check_bundle_file(path, name)]
    if total > LARGEST:
        found.append(BundleProblem(".", f"has {total} bytes, over {LARGEST}"))
    found += [BundleProblem(WHEELS, what) for what in _check_wheels(directory / WHEELS)]
    if (directory / WHEELS).is_dir():
        found += [
            BundleProblem(place, why)
            for place, why in bundle_wheels.find_bundle_wheel_problems(directory)
        ]
    found += [
        BundleProblem(PYTHON, what) for what in _check_packed_python_archive(directory / PYTHON)
    ]
    if not found:
        found += _check_bundle_settings(directory)
    return tuple(found)


def _check_bundle_file(path: Path, name: str) -> Iterator[str]:
    if any(ord(letter) < 32 or letter == "\\" for letter in name):
        yield "has a name that a MANIFEST cannot hold"
    if path.stat().st_size > LARGEST_FILE:
        yield f"is over {LARGEST_FILE} bytes"
    elif path.suffix in (".sh", ".py", ".json"):
        try:
            text = path.read_bytes().decode()
        except UnicodeDecodeError as error:
            yield f"is not UTF-8 text: byte {error.start}"
            return
        yield from (
            _check_shell_script(path, text) if path.suffix == ".sh" else _OF_TEXT[path.suffix](text)
        )


def _check_shell_script(path: Path, text: str) -> Iterator[str]:
    first = text.partition("\n")[0]
    if "\r" in text:
        yield f"has CRLF line ends (line {text[: text.index(chr(13))].count(chr(10)) + 1})"
        return
    if not first.startswith("#!"):
        yield "has no shebang in its first line"
    if not path.stat().st_mode & 0o100:
        yield "is not executable"
    shell = "bash" if "bash" in first else "sh"
    try:
        checked = subprocess.run(
            [shell, "-n", str(path)], capture_output=True, text=True, timeout=30, check=False
        )
    except FileNotFoundError:
        return
    if checked.returncode:
        yield f"{shell} -n: {checked.stderr.strip().splitlines()[-1].replace(str(path), path.name)}"


def _check_python_file(text: str) -> Iterator[str]:
    try:
        ast.parse(text, feature_version=PYTHON_FLOOR)
    except SyntaxError as error:
        floor = ".".join(map(str, PYTHON_FLOOR))
        yield f"line {error.lineno}: not Python {floor}: {error.msg}"


def _check_json_file(text: str) -> Iterator[str]:
    try:
        json.loads(text)
    except ValueError as error:
        yield f"not JSON: {error}"


_OF_TEXT = {".py": _check_python_file, ".json": _check_json_file}


def _check_wheels(directory: Path) -> Iterator[str]:
    for path in directory.glob("*"):
        if path.suffix != ".whl":
            yield f"{path.name} is no wheel: a node has nothing to build it with"


def _check_packed_python_archive(packed: Path) -> Iterator[str]:
    """Check whether a node finds bin/python3 in it; that it runs where it is put only a node can
    tell."""
    if not packed.is_file():
        return
    try:
        with tarfile.open(packed) as archive:
            names = {name.removeprefix("./") for name in archive.getnames()}
    except (tarfile.TarError, OSError, EOFError) as error:
        yield f"cannot be unpacked: {error}"
        return
    if not names & {"bin/python3", "python/bin/python3"}:
        yield "has neither bin/python3 nor python/bin/python3"


def _check_bundle_settings(directory: Path) -> list[BundleProblem]:
    """Return what the scripts themselves say of config.json and the users file."""
    answer = subprocess.run(
        [sys.executable, "-IB", str(directory / "lifecycle"), "check", "--bundle", str(directory)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if answer.returncode:
        return [BundleProblem("lifecycle", answer.stderr.strip().splitlines()[-1])]
    lines = (str(problem).partition(": ") for problem in json.loads(answer.stdout))
    return [BundleProblem(path, what) for path, _, what in lines]


ROLES = ("controller", "login", "compute")
STATE = "var/lib/hpctl/lifecycle"
LIMIT_S = 300.0


STATE_STYLES = {"done": GOOD, "failed": BAD, "running": WARN}


class LifecycleStepState(Struct, frozen=True):
    """What became of a step of a node: done, failed, running, not_applicable or off, and why.

    `weight` is required, optional or off; `tries` counts processes, `seconds` waits as well.
    """

    step: str
    state: str
    weight: str
    tries: int
    seconds: float
    started: str
    why: str

    columns: ClassVar[Columns] = (
        Column("STEP", "step"),
        Column("STATE", "state", style=STATE_STYLES),
        Column("TRIES", lambda step: step.tries if step.is_run_to_end or step.is_running else None),
        Column("SECONDS", lambda step: f"{step.seconds:.1f}" if step.is_run_to_end else None),
        Column("WHY", "reason", fold=True),
    )
    json_only: ClassVar[JsonOnly] = ("started",)

    @property
    def is_run_to_end(self) -> bool:
        """Return whether the step was run to its end."""
        return self.state in ("done", "failed")

    @property
    def is_running(self) -> bool:
        """Return whether the step runs now."""
        return self.state == "running"

    @property
    def reason(self) -> str | None:
        """Return why the step is in this state."""
        optional = self.weight == "optional" and self.state == "failed"
        return f"{self.why}{' (optional)' if optional else ''}" or None


class LifecycleRunState(Struct, frozen=True):
    """What became of a node's last run: done, failed or running. `bundle` is the digest."""

    node: str
    role: str
    group: str
    instance_id: str
    mode: str
    bundle: str
    state: str
    why: str
    at: str
    steps: tuple[LifecycleStepState, ...]

    layout: ClassVar[Layout] = (
        TextLine("{node} {role} of {group}, {instance_id}, {mode}"),
        TextLine("{end}", style=lambda run: STATE_STYLES.get(run.state, "")),
        TextLine(lambda run: f"bundle {run.bundle[:12] or '(unsigned)'}"),
        RowTable("steps", gap=True),
    )

    @property
    def end(self) -> str:
        """Return the state, when it was reached, and why."""
        return f"{self.state} at {self.at}" + (f": {self.why}" if self.why else "")


def read_lifecycle_run_state(root: Path) -> LifecycleRunState | None:
    """Return what the runner wrote down below a root; None where it never ran. Raises
    HpctlError."""
    directory = root / STATE
    run = _read_json_object(directory / "run.json")
    if run is None:
        return None
    found = [
        _read_json_object(path) for path in directory.glob("*.json") if path.name != "run.json"
    ]
    steps = sorted((one for one in found if one), key=lambda one: int(one.get("order", 0)))
    names = ("node", "role", "group", "instance_id", "mode", "bundle", "state", "why", "at")
    return LifecycleRunState(
        **{name: str(run.get(name, "")) for name in names},
        steps=tuple(map(_parse_lifecycle_step_state, steps)),
    )


def _parse_lifecycle_step_state(one: Mapping[str, Any]) -> LifecycleStepState:
    args = {name: str(one.get(name, "")) for name in ("step", "state", "weight", "started", "why")}
    tries, seconds = int(one.get("tries", 0)), float(one.get("seconds", 0.0))
    return LifecycleStepState(**args, tries=tries, seconds=seconds)


def _read_json_object(path: Path) -> dict[str, Any] | None:
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise HpctlError(f"{path}: {error}", "run it as root, or run the scripts again") from error
    return data if isinstance(data, dict) else None


class BundleTrialRun(Struct, frozen=True):
    """One run of a bundle: the node's states, and the last line of its log."""

    role: str
    code: int
    last: str
    run: LifecycleRunState | None


def run_bundle_as_node_role(bundle: Path, role: str, mode: str, root: Path) -> BundleTrialRun:
    """Run the entry script as a node of a role, below an empty directory.

    Groups are those of the bundle's provisioning_parameters.json, where it has one. What needs
    systemd, mounts or accounts does not run: a directory has none.
    """
    root.mkdir(parents=True, exist_ok=True)
    groups = _map_node_roles_to_group_names(bundle)
    resources = root / "resource_config.json"
    resources.write_text(json.dumps(_make_test_resource_config(groups)))
    script = "on_create.sh" if mode == "OnCreate" else "on_init_complete.sh"
    environment = {
        **os.environ,
        "SAGEMAKER_RESOURCE_CONFIG_PATH": str(resources),
        "HPCTL_LIFECYCLE_ROOT": str(root),
        "HPCTL_LIFECYCLE_IP": _make_role_ip_address(role),
        "HPCTL_LIFECYCLE_BACKOFF_S": "0.1",
    }
    try:
        done = subprocess.run(
            ["sh", str(bundle / script)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HpctlError(
            f"the test run of the lifecycle script {script} did not finish within {LIMIT_S:.0f} s",
            "check the site's scripts in site.d of the bundle",
        ) from error
    lines = done.stdout.strip().splitlines()
    return BundleTrialRun(
        role, done.returncode, lines[-1] if lines else "", read_lifecycle_run_state(root)
    )


def _make_role_ip_address(role: str) -> str:
    return f"10.77.{ROLES.index(role)}.5"


def _map_node_roles_to_group_names(bundle: Path) -> dict[str, str]:
    """Role -> a group's name, as the cluster that the bundle is for has them."""
    given = _read_json_object(bundle / "provisioning_parameters.json") or {}
    workers = given.get("worker_groups") or [{}]
    roles = (_read_json_object(bundle / "config.json") or {}).get("roles") or {}
    if not given:
        named = {its: group for group, its in reversed(roles.items())}
        return {role: str(named.get(role) or role) for role in ROLES}
    named = {
        "controller": given.get("controller_group"),
        "login": given.get("login_group"),
        "compute": workers[0].get("instance_group_name"),
    }
    return {role: str(name) for role, name in named.items() if name}


def list_bundle_roles(bundle: Path) -> tuple[str, ...]:
    """Return the roles that the bundle's cluster has."""
    return tuple(role for role in ROLES if role in _map_node_roles_to_group_names(bundle))


def _make_test_resource_config(groups: Mapping[str, str]) -> dict[str, Any]:
    """resource_config.json of a cluster with one node of each role, and an empty group."""
    arn = "arn:aws:sagemaker:us-east-1:000000000000:cluster/trial0000000"
    kinds = {"controller": "Controller", "login": "Login", "compute": "Compute"}
    listed: list[dict[str, Any]] = [
        {
            "Name": name,
            "InstanceType": "ml.p5.48xlarge" if role == "compute" else "ml.m5.xlarge",
            "SlurmConfig": {"NodeType": kinds[role]},
            "Instances": [
                {
                    "InstanceName": f"{name}-1",
                    "AgentIpAddress": "172.16.0.9",
                    "CustomerIpAddress": _make_role_ip_address(role),
                    "InstanceId": f"i-{number:017d}",
                    "InstanceLabel": None,
                }
            ],
        }
        for number, (role, name) in enumerate(groups.items(), 1)
    ]
    empty = {"Name": "empty", "InstanceType": "ml.m5.xlarge", "Instances": None}
    return {
        "ClusterConfig": {"ClusterArn": arn, "ClusterName": "trial"},
        "ClusterType": "Slurm",
        "SlurmConfig": {
            "PrimaryControllerIp": _make_role_ip_address("controller"),
            "SecondaryControllerIps": [],
        },
        "InstanceGroups": [*listed, empty],
    }
