"""The making of a new journal in a file, and the refusal to lead with one that is absent.

A state directory on a file system that is not mounted is an empty directory. A daemon that began a
new journal there would forget every open recovery, every pause and all budgets, and lead.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from hpctl.engine.journal.source import get_sqlite_path_from_url
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.toolkit.errors import HpctlError

log = logging.getLogger("hpctl.daemon")

CREATE_S: Final = 60.0
"""How long the process that makes a journal may take, in seconds."""


class JournalMissingError(HpctlError):
    """There is no journal where one has to be."""


def check_journal_exists(url: str, *, may_create: bool) -> None:
    """Raise JournalMissingError where the journal is a file that is not there and that may not be
    created; log a warning where it may. A journal in a database is not looked at."""
    file = get_sqlite_path_from_url(url)
    if file is None or file.exists():
        return
    if may_create:
        log.warning(
            "%s is not there: a new journal begins, in which no earlier recovery is known", file
        )
        return
    raise JournalMissingError(
        f"the daemon cannot start: its journal {file} does not exist, and journal.create: false "
        "forbids it to create one",
        f"mount the file system of {file.parent}; if the journal is lost, restore a backup"
        " (hpctl journal restore FILE); for a new cluster, create it: hpctl journal create",
    )


def create_journal(url: str, config: str, python: str = "") -> Path:
    """Create an empty journal as the owner of its directory; return the file.

    Root starts `hpctl journal create` with that configuration as the owner, who may have put a link
    in the file's place. `python` is an interpreter that the owner may run; empty: this one. Raises
    HpctlError, OSError.
    """
    file = get_sqlite_path_from_url(url)
    if file is None:
        raise HpctlError(
            "there is no journal file to create: hpctl.yaml keeps the journal in a database",
            "nothing to do: the daemon creates the tables when it first starts",
        )
    if os.path.lexists(file):
        raise HpctlError(
            f"cannot create the journal: {file} exists already",
            "to check that it can be read, run: hpctl journal check",
        )
    owner = file.parent.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        from hpctl.engine.journal.store import JournalStore

        JournalStore(url).close()
        return file
    command = [
        python or sys.executable,
        *SAFE_PATH,
        "hpctl",
        "journal",
        "create",
        f"--config={config}",
    ]
    done = subprocess.run(
        command, user=owner.st_uid, group=owner.st_gid, extra_groups=[], cwd="/",
        capture_output=True, text=True, timeout=CREATE_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise HpctlError(
            f"hpctl could not create its journal: {done.stderr.strip()}",
            "fix the cause in the message, and run the command again",
        )
    return file
