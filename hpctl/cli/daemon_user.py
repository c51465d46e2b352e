"""The user that the daemon runs as, and what Slurm lets that user do."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpctl.engine.config import DEFAULT_PATH, Config
from hpctl.engine.database_url import has_url_password, parse_database_url
from hpctl.toolkit.errors import HpctlError
from hpctl.wire.heads import read_slurm_user

# Its unit runs the daemon as SlurmUser. A secret is readable for that user's group and no other
# user: hpctl.yaml where it holds a database's password, and the token of Alertmanager.

UNIT = "hpctl-daemon.service"


FIX = "as root: hpctl install daemon-user, then systemctl restart hpctl-daemon"


_CLOSED = 'for path do [ -r "$path" ] || printf "%s\\0" "$path"; done'


def list_unreadable_paths(user: str, paths: Iterable[Path]) -> list[Path]:
    """Return those paths that are there and that a user cannot read.

    Raises HpctlError where there is no such user, PermissionError where only root may tell.
    """
    try:
        one = pwd.getpwnam(user)
    except KeyError:
        raise HpctlError(
            f"the user that hpctl's daemon runs as, {user}, has no account on this machine", FIX
        ) from None
    there = (str(path) for path in paths if path.exists())
    who: Any = {"user": one.pw_uid, "group": one.pw_gid}
    who["extra_groups"] = os.getgrouplist(user, one.pw_gid)
    args = ("sh", "-c", _CLOSED, "sh", *there)
    done = subprocess.run(args, cwd="/", capture_output=True, timeout=30, check=True, **who)
    return [Path(os.fsdecode(path)) for path in done.stdout.split(b"\0") if path]


def _list_daemon_secret_files(config: Config) -> set[Path]:
    """Return the files that the daemon reads and others must not."""
    files = (config.alerts.token_file, config.page.token_file)
    found = {file for file in files if file}
    found |= {Path(file) for file in config.notify.sinks.values() if file.startswith("/")}
    if config.database_url and has_url_password(parse_database_url(config.database_url)):
        found.add(Path(DEFAULT_PATH))
    return found


def list_files_needing_permission_changes(config: Config, user: str) -> list[Path]:
    """Return the files whose group or mode must change: a closed one, and a secret that is open."""
    hidden = _list_daemon_secret_files(config)
    loud = {path for path in hidden if path.exists() and path.stat().st_mode & 0o006}
    return sorted(loud.union(list_unreadable_paths(user, {Path(DEFAULT_PATH), *hidden})))


def grant_group_read_access(path: Path, user: str) -> None:
    """Have a user's group, and no other, read a file of root's. Raises HpctlError, OSError."""
    found, group = path.stat(), pwd.getpwnam(user).pw_gid
    if found.st_gid not in (0, group):
        raise HpctlError(
            f"hpctl's daemon cannot read {path}: the file belongs to another group",
            f"run as root: chgrp {group} {path}; chmod 0640 {path}",
        )
    os.chown(path, -1, group)
    path.chmod(found.st_mode & 0o700 | 0o040)
    if list_unreadable_paths(user, [path]):
        raise HpctlError(
            f"hpctl's daemon, user {user}, cannot read {path}: it has no access to the file's "
            "directory",
            f"run as root: chmod o+x {path.parent}",
        )


def find_slurm_user(config: Config | None) -> str:
    """SlurmUser, as slurmctld says; where it does not answer, as slurm.conf does."""
    from hpctl.engine.adapters import make_slurm_command_client

    shown: Mapping[str, str] = {}
    with contextlib.suppress(HpctlError):
        shown = make_slurm_command_client(config or Config()).show_config()
    return shown.get("SlurmUser", "").partition("(")[0] or read_slurm_user()


def find_systemd_unit_user() -> str | None:
    """Whom the installed unit runs the daemon as; None where there is none."""
    args = ("systemctl", "show", "--property=LoadState,User", UNIT)
    shown = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        shown = subprocess.run(args, capture_output=True, text=True, timeout=20, check=True).stdout
    named = re.search(r"(?m)^User=(.+)$", shown)
    return None if "LoadState=loaded" not in shown else named[1] if named else "root"
