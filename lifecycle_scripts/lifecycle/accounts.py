"""The users of the cluster: the site's list, and the AMI's own."""

from __future__ import annotations

import os
import pwd
import re
import traceback
from pathlib import Path
from typing import Callable, NamedTuple

from lifecycle.failure import Failure
from lifecycle.mounting import mounted
from lifecycle.node import Node

NAME = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


class User(NamedTuple):
    """One line of the users file: `name,uid,home`."""

    name: str
    uid: int
    home: str


def listed(node: Node) -> list[User]:
    """Return the site's users, with the homes they have here. Raises Failure with every bad
    line."""
    users = parse(node.bundle / node.config["users"]["file"])
    return [user._replace(home=home_of(node, user)) for user in users]


def parse(path: Path) -> list[User]:
    """Return the users of a file; none where there is no file. Raises Failure with every bad
    line."""
    if not path.is_file():
        return []
    users, wrong = [], []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        fields = [word.strip() for word in line.split(",")]
        if not line.strip() or line.startswith("#"):
            continue
        if len(fields) != 3 or not NAME.fullmatch(fields[0]) or not fields[1].isdigit():
            wrong.append(f"line {number}: not name,uid,home: {line!r}")
        elif not 1000 <= int(fields[1]) < 2**31 or not fields[2].startswith("/"):
            wrong.append(f"line {number}: a uid from 1000 and a home from / are wanted")
        else:
            users.append(User(fields[0], int(fields[1]), fields[2].rstrip("/")))
    for what in ("name", "uid"):
        values = [getattr(user, what) for user in users]
        wrong += [
            f"{what} {one} stands twice" for one in sorted({*values}) if values.count(one) > 1
        ]
    if wrong:
        raise Failure("{}: {}".format(path.name, "; ".join(wrong)))
    return users


def home_of(node: Node, user: User) -> str:
    """Return where the home lies: on OpenZFS where /home is one, as HyperPod's own scripts have
    it."""
    zfs = node.config["fsx_openzfs"]["mount_path"]
    return f"{zfs}/{user.name}" if mounted(node, zfs) else user.home


def account(name: str) -> pwd.struct_passwd | None:
    """Return an account of the machine; None where it has none of this name."""
    try:
        return pwd.getpwnam(name)
    except KeyError:
        return None


def everybody(node: Node) -> list[pwd.struct_passwd]:
    """Return the accounts of people that are on the machine: listed ones, and the AMI's
    defaults."""
    names = [user.name for user in listed(node)] + list(node.config["users"]["default"])
    found = [account(name) for name in dict.fromkeys(names)]
    return [one for one in found if one is not None]


def as_user(one: pwd.struct_passwd, action: Callable[[], None]) -> None:
    """Do a thing in a user's home with that user's rights: no link of theirs leads root astray."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(one.pw_gid)
            os.setuid(one.pw_uid)
            os.umask(0o077)
            os.environ["HOME"] = one.pw_dir
            action()
            code = 0
        except (OSError, Failure) as error:
            print(f"{one.pw_name}: {error}", flush=True)
        except BaseException:  # noqa: BLE001 -- nothing may run past the end of the child
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        raise Failure(f"not done for user {one.pw_name}: see the line before")
