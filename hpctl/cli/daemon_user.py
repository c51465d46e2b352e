"""The user that the daemon's unit runs it as, SlurmUser, and what that user must be able to read.

A secret is for that user's group to read and for nobody beside it: hpctl.yaml where it holds a
database's password, and the token of Alertmanager.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from hpctl.cli.doctor_checks import CheckView, ShowsConfig
from hpctl.cloud.details import RESOURCE_CONFIG
from hpctl.config import DEFAULT_PATH, Config
from hpctl.heads import slurm_confs, slurm_user
from hpctl.ports import HpctlError

UNIT = "hpctl-daemon.service"
MEND = "as root: hpctl install daemon-user, then systemctl restart hpctl-daemon"
_CLOSED = 'for path do [ -r "$path" ] || printf "%s\\0" "$path"; done'


def closed(user: str, paths: Iterable[Path]) -> list[Path]:
    """Those paths that are there and that a user cannot read.

    Raises HpctlError where there is no such user, PermissionError where only root may tell.
    """
    try:
        one = pwd.getpwnam(user)
    except KeyError:
        raise HpctlError(f"the daemon's user {user} has no account here", MEND) from None
    done = subprocess.run(
        ("sh", "-c", _CLOSED, "sh", *(str(path) for path in paths if path.exists())),
        cwd="/",
        stdout=subprocess.PIPE,
        timeout=30,
        check=True,
        user=one.pw_uid,
        group=one.pw_gid,
        extra_groups=os.getgrouplist(user, one.pw_gid),
    )
    return [Path(os.fsdecode(path)) for path in done.stdout.split(b"\0") if path]


def _secrets(config: Config) -> set[Path]:
    """The files that the daemon reads and others must not."""
    from sqlalchemy import make_url

    found = {config.alerts.token_file} if config.alerts.token_file else set()
    if config.database_url and make_url(config.database_url).password:
        found.add(Path(DEFAULT_PATH))
    return found


def grants(config: Config, user: str) -> list[Path]:
    """The files whose group or mode must change: a closed one, and a secret that is open."""
    hidden = _secrets(config)
    loud = {path for path in hidden if path.exists() and path.stat().st_mode & 0o006}
    return sorted(loud.union(closed(user, {Path(DEFAULT_PATH), *hidden})))


def grant(path: Path, user: str) -> None:
    """Have a user's group read a file of root's, and nobody beside. Raises HpctlError, OSError."""
    found, group = path.stat(), pwd.getpwnam(user).pw_gid
    if found.st_gid not in (0, group):
        raise HpctlError(f"{path} is another group's", f"chgrp {group} {path}; chmod 0640 {path}")
    os.chown(path, -1, group)
    path.chmod(found.st_mode & 0o700 | 0o040)
    if closed(user, [path]):
        raise HpctlError(f"{user} cannot get to {path}", f"chmod o+x {path.parent}")


def doctor(config: Config) -> Iterator[CheckView]:
    """The unit runs the daemon as SlurmUser, who reads what the daemon must."""
    user, name = unit_user(), "daemon's user"
    if user is None:
        return
    owner = slurms_user(config)
    if user != owner:
        what = f"the unit runs the daemon as {user}, who may not drain: SlurmUser is {owner}"
        yield CheckView(name, "fail", what, MEND)
        return
    state = [path for path in config.state_dir.glob("*") if path.is_file()]
    conf = [config.slurm.conf] if config.slurm.conf else slurm_confs()
    home = (Path.home() / ".aws" / part for part in ("config", "credentials"))
    try:
        wrong = grants(config, owner)
        wrong += closed(owner, [*conf, config.kill_switch.parent])
        lost, spare = closed(owner, state), closed(owner, [RESOURCE_CONFIG, *home])
    except PermissionError:
        what = f"only root can tell what {owner} may read"
        yield CheckView(name, "unknown", what, "sudo hpctl doctor")
        return
    if lost:
        mend = f"chown root: {config.state_dir}; systemctl restart hpctl-daemon (it gets it all)"
        yield CheckView(name, "fail", f"not {owner}'s: {_and(lost)}", mend)
    if wrong:
        what = f"{owner} must read, and nobody beside where it is a secret: {_and(wrong)}"
        yield CheckView(name, "fail", what, MEND)
    if spare:
        what = f"{owner} cannot read {_and(spare)}: the API and the instance's role serve instead"
        yield CheckView(name, "note", what, f"without a role: {owner} needs a ~/.aws of its own")
    if not (lost or wrong):
        yield CheckView(name, "ok", f"{owner}, SlurmUser, reads what the daemon must", "")


def _and(paths: Iterable[Path]) -> str:
    return ", ".join(map(str, paths))


def slurms_user(config: Config | None) -> str:
    """SlurmUser, as slurmctld says; where it does not answer, as slurm.conf does."""
    from hpctl.wiring import make_scheduler

    shown: Mapping[str, str] = {}
    with contextlib.suppress(HpctlError):
        scheduler = make_scheduler(config or Config())
        shown = scheduler.show_config() if isinstance(scheduler, ShowsConfig) else {}
    return shown.get("SlurmUser", "").partition("(")[0] or slurm_user()


def unit_user() -> str | None:
    """Whom the installed unit runs the daemon as; None where there is none."""
    words = ("systemctl", "show", "--property=LoadState,User", UNIT)
    try:
        said = subprocess.run(words, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    shown = dict(line.split("=", 1) for line in said.splitlines())
    return (shown["User"] or "root") if shown.get("LoadState") == "loaded" else None
