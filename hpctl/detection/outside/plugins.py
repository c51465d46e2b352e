"""A site's own checks: executables in a directory, each run at an interval and expected to print
JSON, or in the form of another tool that its description names (`verdict_formats`).

Each is a check like the agent's own, named `plugin.<file>`: HealthCheckSpec, `gather` and `judge`.
A file that others than root can have written is never run, because the agent is root; that is a
finding of the check `agent.plugins`, which also reports a new file. A plugin's findings are shown
and have no effect until the site has written a rule for it (docs/plugins.md).
"""

import os
import re
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from msgspec import Struct

from hpctl.detection.check import (
    CheckedMachine,
    CheckObservation,
    CheckResultUnknownError,
    Judged,
    Limits,
)
from hpctl.detection.outside.plugin_child import PluginProcess, PluginProcessResult
from hpctl.detection.outside.plugin_json import (
    MAX_DETAIL,
    PluginDescription,
    parse_plugin_description,
    parse_plugin_findings,
)
from hpctl.detection.outside.trust import explain_untrusted_directory, explain_untrusted_path
from hpctl.detection.outside.verdict_formats import parse_health_tool_verdict
from hpctl.detection.outside.verdict_readers import HealthToolOutput
from hpctl.faults.table import HealthCheckSpec
from hpctl.vocabulary.model import ClearCondition, DeviceVerdict

DIRECTORY = Path("/etc/hpctl/checks.d")


MAX_PLUGINS = 32


DESCRIBE_S = 5.0
"""How long one may take for `--describe`."""


CHECK_DIRECTORY = "agent.plugins"


_NAME = re.compile(r"[a-z][a-z0-9_.]{0,55}")


_IGNORED = (".", "README")


_OWN_IT = "chown root and chmod go-w it; nothing in it is run until then"


_NEW = "is new or was corrected: restart the agent to run it"


_MISSED_RUNS = 3
"""A plugin's finding ends when so many runs no longer saw it, unless its description sets another
number."""


class RefusedPlugin(Struct, frozen=True):
    """A file that is not run, and why, with a hint."""

    file: str
    why: str


class CheckPlugin:
    """One executable as a check. Its `gather` takes up to its own `timeout_s`."""

    def __init__(self, path: Path, description: PluginDescription) -> None:
        self.path, self.timeout_s = path, description.timeout_s
        self._format = description.format
        gone_s = description.gone_s or _MISSED_RUNS * description.every_s
        self.spec = HealthCheckSpec(
            name=make_plugin_check_name(path.name),
            what=description.what or f"this site's own check {path.name}",
            source=str(path),
            every_s=description.every_s,
            seen=description.seen,
            clears=description.clears,
            gone_s=gone_s,
            grace_s=description.grace_s,
            shed=2,
        )
        self._child = PluginProcess([os.fspath(path)], description.timeout_s)

    def gather(self, machine: CheckedMachine) -> tuple[CheckObservation, ...]:
        """Run it once. Raises CheckResultUnknownError, with a hint."""
        trouble = _explain_untrusted_plugin_file(self.path)
        if trouble:
            raise CheckResultUnknownError(trouble)
        try:
            ended = self._child.run()
            if self._format is not None:
                return parse_health_tool_verdict(self._format, _make_plugin_tool_output(ended))
            if ended.status != 0:
                raise CheckResultUnknownError(
                    f"ended with "
                    f"{_format_plugin_exit_status(ended.status)}{_format_last_stderr_line(ended.complaint)}"
                )
            return parse_plugin_findings(ended.output)
        except CheckResultUnknownError as error:
            raise CheckResultUnknownError(f"{self.path.name} {error}"[:MAX_DETAIL]) from error

    def judge(self, seen: Sequence[CheckObservation], before: object, limits: Limits) -> Judged:
        """Return what it reported, without results that are OK, which need no finding."""
        return tuple(
            observation for observation in seen if observation.verdict is not DeviceVerdict.OK
        )


class PluginDirectoryCheck:
    """The directory as a check: its files that are not run.

    `refused` are those whose problem does not show in the file itself.
    """

    spec = HealthCheckSpec(
        name=CHECK_DIRECTORY,
        what="files in the directory of this site's checks that the agent does not run",
        source="hpctl",
        every_s=60.0,
        clears=ClearCondition.GONE,
        gone_s=60.0,
        shed=1,
    )

    def __init__(
        self, directory: Path, refused: Sequence[RefusedPlugin], running: Iterable[str]
    ) -> None:
        self._directory = directory
        self._refused = {refusal.file: refusal.why for refusal in refused}
        self._running = frozenset(running)

    def gather(self, machine: CheckedMachine) -> tuple[RefusedPlugin, ...]:
        """Read the directory as it is now, without running any file. Raises
        CheckResultUnknownError."""
        try:
            trouble = explain_untrusted_directory(self._directory)
            if trouble:
                return (RefusedPlugin(str(self._directory), f"{trouble}: {_OWN_IT}"),)
            found = _list_plugin_files(self._directory)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise CheckResultUnknownError(f"{self._directory}: {error.strerror}") from error
        return tuple(
            RefusedPlugin(
                path.name,
                _explain_untrusted_plugin_file(path) or self._refused.get(path.name, _NEW),
            )
            for path in found
            if path.name not in self._running
        )

    def judge(self, seen: Sequence[RefusedPlugin], before: object, limits: Limits) -> Judged:
        """Return one observation for each file that is not run."""
        return tuple(
            CheckObservation("refused", r.file[:256], DeviceVerdict.WARN, r.why[:MAX_DETAIL])
            for r in seen
        )


Check = CheckPlugin | PluginDirectoryCheck


def load_check_plugins(directory: Path = DIRECTORY) -> tuple[Check, ...]:
    """Return every plugin of a directory, by name, and the directory's own check; never raises.

    Each is asked for `--describe` once, for DESCRIBE_S at most, several at a time: call it off the
    agent's main thread. Without a directory there is only its own check.
    """
    refused: list[RefusedPlugin] = []
    taken: dict[str, Path] = {}
    for path in _list_trusted_plugin_files(directory):
        trouble = _explain_invalid_plugin_name(path, taken)
        if trouble:
            refused.append(RefusedPlugin(path.name, trouble))
        elif len(taken) >= MAX_PLUGINS:
            refused.append(RefusedPlugin(path.name, f"is one too many: the limit is {MAX_PLUGINS}"))
        else:
            taken[make_plugin_check_name(path.name)] = path
    with ThreadPoolExecutor(8, thread_name_prefix="describe") as pool:
        asked = list(pool.map(_load_check_plugin, taken.values()))
    plugins = [made for made in asked if isinstance(made, CheckPlugin)]
    refused += [made for made in asked if isinstance(made, RefusedPlugin)]
    running = (plugin.path.name for plugin in plugins)
    return (*plugins, PluginDirectoryCheck(directory, refused, running))


def make_plugin_check_name(file: str) -> str:
    """Return the check's name: `nhc-disk.sh` is `plugin.nhc.disk`, and its rules are
    plugin-nhc-disk."""
    stem = file.rpartition(".")[0] or file
    return "plugin." + stem.replace("-", ".")


def _load_check_plugin(path: Path) -> CheckPlugin | RefusedPlugin:
    try:
        ended = PluginProcess([os.fspath(path), "--describe"], DESCRIBE_S).run()
        if ended.status != 0:
            raise CheckResultUnknownError(
                f"--describe ended with {_format_plugin_exit_status(ended.status)}"
                f"{_format_last_stderr_line(ended.complaint)}"
            )
        return CheckPlugin(path, parse_plugin_description(ended.output))
    except CheckResultUnknownError as error:
        return RefusedPlugin(path.name, f"{error}; it may also ignore its arguments")


def _list_trusted_plugin_files(directory: Path) -> list[Path]:
    """Return the files that may be run; PluginDirectoryCheck's gather reports why the others may
    not."""
    try:
        if explain_untrusted_directory(directory):
            return []
        return [
            path
            for path in _list_plugin_files(directory)
            if not _explain_untrusted_plugin_file(path)
        ]
    except OSError:
        return []


def _list_plugin_files(directory: Path) -> list[Path]:
    """Return the files to run: no hidden files, no README, no directories. Raises OSError."""
    return sorted(
        path
        for path in directory.iterdir()
        if not path.name.startswith(_IGNORED) and not stat.S_ISDIR(path.lstat().st_mode)
    )


def _explain_untrusted_plugin_file(path: Path) -> str:
    """Return why a file is not run, with a hint; empty where it may be."""
    try:
        status = path.lstat()
    except OSError as error:
        return f"{path}: {error.strerror}"
    trouble = explain_untrusted_path(path, status)
    if trouble:
        return f"{trouble}: copy it there, chown root, chmod 0755"
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is no regular file: remove it"
    if not status.st_mode & stat.S_IXUSR:
        return f"{path} is not executable: chmod 0755"
    return ""


def _explain_invalid_plugin_name(path: Path, taken: dict[str, Path]) -> str:
    name = make_plugin_check_name(path.name)
    if not _NAME.fullmatch(name.removeprefix("plugin.")):
        return f"{path.name}: small letters, digits, _ . and - only, a letter first: rename it"
    if name in taken:
        return f"{path.name} and {taken[name].name} are both {name}: rename one"
    return ""


def _make_plugin_tool_output(ended: PluginProcessResult) -> HealthToolOutput:
    text = ended.output.decode(errors="replace")
    return HealthToolOutput(text, ended.status, os.uname().nodename)


def _format_plugin_exit_status(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit code {status}, not 0"


def _format_last_stderr_line(complaint: str) -> str:
    return f": {complaint.splitlines()[-1][:120]}" if complaint else ""
