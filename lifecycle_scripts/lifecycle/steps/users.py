"""The site's users with the same uid and gid on every node, and homes where they are shared.

The AMI's own users get their home on the shared file system as well: after a replacement it is
where it was.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
from pathlib import Path
from typing import Any

from lifecycle.accounts import User, account, home_of, listed
from lifecycle.failure import Failure, No
from lifecycle.mounting import mounted, owner_of
from lifecycle.node import Node


def _default(node: Node) -> list[User]:
    """Return the AMI's users that are here, with the home that they should have."""
    found = []
    fsx = node.config["fsx_lustre"]["mount_path"]
    shared = mounted(node, fsx) or mounted(node, node.config["fsx_openzfs"]["mount_path"])
    for name in node.config["users"]["default"]:
        one = account(name)
        if one is not None and shared and node.mode == "OnCreate":
            user = User(name, one.pw_uid, f"{fsx}/{name}")
            found.append(user._replace(home=home_of(node, user)))
    return found


def _all(node: Node) -> list[User]:
    return listed(node) + _default(node)


def applies(node: Node) -> Any:
    """Return whether there is anybody, and the machine has accounts."""
    needs = node.machine.needs("accounts")
    if not needs:
        return needs
    return bool(_all(node)) or No("no {} in the bundle".format(node.config["users"]["file"]))


def done(node: Node) -> bool:
    """Everybody is there with uid, gid, shadow entry and a home of their own."""
    shadow = node.machine.path("/etc/shadow").read_text()
    return all(_is_there(user, shadow) for user in _all(node))


def _is_there(user: User, shadow: str) -> bool:
    one = account(user.name)
    return (
        one is not None
        and one.pw_uid == user.uid
        and one.pw_dir == user.home
        and f"\n{user.name}:" in shadow
        and owner_of(Path(user.home)) == user.uid
    )


def run(node: Node) -> None:
    """Make the missing users. Raises Failure where a name or a uid belongs to another user."""
    for user in _all(node):
        _refuse_clash(user)
    machine = node.machine
    for user in _all(node):
        one = account(user.name)
        if one is None:
            if not _group_exists(user.name):
                # The gid is the uid: on a shared file system it must be the same on every node.
                machine.run("groupadd", "--gid", str(user.uid), user.name)
            machine.run(
                "useradd",
                "--uid",
                str(user.uid),
                "--gid",
                user.name,
                "--no-create-home",
                "--home-dir",
                user.home,
                "--shell",
                "/bin/bash",
                user.name,
            )
        elif one.pw_dir != user.home:
            machine.run("usermod", "--home", user.home, user.name)
        _home(user)
    # A useradd that was killed between its files leaves an account that no user can log in to.
    machine.run("pwconv")
    machine.run("grpconv")


def _group_exists(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _refuse_clash(user: User) -> None:
    one = account(user.name)
    if one is not None and one.pw_uid != user.uid:
        raise Failure(f"user {user.name} has uid {one.pw_uid} here, and not {user.uid}")
    try:
        other = pwd.getpwuid(user.uid).pw_name
    except KeyError:
        return
    if other != user.name:
        raise Failure(f"uid {user.uid} of {user.name} is {other}'s here")


def _home(user: User) -> None:
    """A home that is there already, as on a shared file system, keeps what it has."""
    home, one = Path(user.home), account(user.name)
    if one is None or owner_of(home) == user.uid:
        return
    if owner_of(home) not in (None, 0):
        raise Failure(f"home {home} of {user.name} belongs to uid {owner_of(home)}")
    home.parent.mkdir(parents=True, exist_ok=True)
    home.mkdir(mode=0o700, exist_ok=True)
    for source in Path("/etc/skel").iterdir() if Path("/etc/skel").is_dir() else ():
        target = home / source.name
        if source.is_file() and not target.exists():
            shutil.copy(str(source), str(target))
            os.chown(str(target), one.pw_uid, one.pw_gid)
    # Last: a home that belongs to its user is a home that is whole.
    os.chown(str(home), one.pw_uid, one.pw_gid)
