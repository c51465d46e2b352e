"""slurmdbd, before slurmctld starts for the first time, or their cluster ids will not agree.

On the controller's own MariaDB, which the AMI brings, or on an external database. Nothing is
fetched from anywhere but AWS Secrets Manager; no password is printed.
"""

from __future__ import annotations

import re
import secrets
import time
from pathlib import Path
from string import Template
from typing import Any

from lifecycle.failure import Failure, No
from lifecycle.node import Node
from lifecycle.secret import secret
from lifecycle.slurm_files import add_line, last_words, program, set_line, value, wait_for_conf

UNIT = "slurmdbd.service"
LOCAL_UNIT = "mariadb.service"
DATABASE = "slurm_acct_db"
ANSWER_S = 60.0
DBD = """# Written by hpctl at the node's birth.
AuthType=auth/munge
DbdHost=localhost
DbdPort=6819
SlurmUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/var/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StoragePort=3306
StorageUser=$SLURM_DB_USER
StoragePass=$SLURM_DB_PASSWORD
"""


def _external(node: Node) -> dict[str, str]:
    """Endpoint, user and secret of an external database; empty for the controller's own."""
    own = node.config["accounting"]
    given = node.parameters.get("slurm_configurations") or {}
    endpoint = own["endpoint"] or given.get("slurm_database_endpoint") or ""
    if not endpoint:
        return {}
    return {
        "endpoint": str(endpoint),
        "user": str(own["user"] or given.get("slurm_database_user") or "admin"),
        "secret": str(own["secret_arn"] or given.get("slurm_database_secret_arn") or ""),
    }


def applies(node: Node) -> Any:
    """On controllers with a slurmdbd, and a database to keep things in."""
    if node.role != "controller":
        return No("for controllers only")
    if node.mode != "OnCreate":
        return No("the AMI does it (OnInitComplete)")
    needs = node.machine.needs("systemd")
    if not needs:
        return needs
    if not node.machine.has_unit(UNIT):
        return No("no slurmdbd on this machine")
    if not _external(node) and not node.machine.has_unit(LOCAL_UNIT):
        return No("no MariaDB on this machine, and no external database is named")
    return True


def _files(node: Node) -> tuple[Path, Path]:
    return node.slurm_etc / "slurmdbd.conf", node.slurm_etc / "accounting.conf"


def done(node: Node) -> bool:
    """slurmdbd is configured and runs, and slurm.conf will find it."""
    dbd, accounting = _files(node)
    return (
        bool(value(dbd, "StoragePass"))
        and _included(accounting.with_name("slurm.conf"))
        and value(accounting, "AccountingStorageType") == "accounting_storage/slurmdbd"
        and node.machine.up(UNIT)
        and _answers(node)
    )


def _answers(node: Node) -> bool:
    """Return whether slurmdbd has reached its database: a slurmctld that it cannot serve yet
    ends."""
    asked = (program("sacctmgr"), "--noheader", "show", "cluster", "format=cluster")
    return not node.machine.running or node.machine.works(*asked, timeout=30)


def run(node: Node) -> None:
    """Database, slurmdbd.conf, accounting.conf, slurmdbd: each again as it should be."""
    wait_for_conf(node)
    external = _external(node)
    if external:
        if not external["secret"]:
            raise Failure(
                "an external database is named without its secret (slurm_database_secret_arn)"
            )
        user, password = external["user"], secret(node, external["secret"])
    else:
        # Kept where slurmdbd reads it: a second run must not lock the first one's slurmdbd out.
        user, password = "slurm", value(_files(node)[0], "StoragePass") or secrets.token_hex(16)
    _write_dbd(node, user, password, external)
    if not external:
        _own_database(node, password)
    _write_accounting(node)
    node.machine.start(UNIT, again=True)
    deadline = time.monotonic() + ANSWER_S
    while not _answers(node):
        # Of two that make a new database's tables at once, one ends: the next try starts it again.
        up = node.machine.up(UNIT)
        if not up or time.monotonic() > deadline:
            what = "does not reach its database" if up else "has ended"
            raise Failure(f"{UNIT} {what}: {last_words(node, UNIT)}")
        time.sleep(0.5)


def _write_dbd(node: Node, user: str, password: str, external: dict[str, str]) -> None:
    path = _files(node)[0]
    template = path.with_name(path.name + ".template")
    text = template.read_text() if template.is_file() else DBD
    text = Template(text).safe_substitute(SLURM_DB_USER=user, SLURM_DB_PASSWORD=password)
    settings = {"StorageUser": user, "StoragePass": password}
    if external:
        settings["StorageHost"] = external["endpoint"]
        settings["StoragePort"] = str(node.config["accounting"]["port"])
    if node.config["accounting"]["database"]:
        settings["StorageLoc"] = node.config["accounting"]["database"]
    for key, word in settings.items():
        text = set_line(text, re.escape(key) + r"[ \t]*=", f"{key}={word}")
    node.machine.write(path, text, 0o600, "slurm")


def _own_database(node: Node, password: str) -> None:
    node.machine.start(LOCAL_UNIT)
    if not node.machine.running:
        return
    name = node.config["accounting"]["database"] or DATABASE
    node.machine.run(
        "mysql",
        "--user=root",
        "--batch",
        timeout=60,
        quiet=True,
        given=f"CREATE DATABASE IF NOT EXISTS `{name}`;\n"
        f"CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED BY '{password}';\n"
        f"ALTER USER 'slurm'@'localhost' IDENTIFIED BY '{password}';\n"
        f"GRANT ALL ON `{name}`.* TO 'slurm'@'localhost';\n"
        "DELETE FROM mysql.global_priv WHERE User='';\n"
        "FLUSH PRIVILEGES;\n",
    )


def _write_accounting(node: Node) -> None:
    """AMIs include accounting.conf in slurm.conf, and leave it empty."""
    path = _files(node)[1]
    host = node.name if len(node.controllers) < 2 else "localhost"
    lines = [
        "# Written by hpctl at the node's birth.",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=30",
        "AccountingStorageType=accounting_storage/slurmdbd",
        f"AccountingStorageHost={host}",
        "AccountingStoragePort=6819",
    ]
    conf = path.with_name("slurm.conf")
    if value(conf, "AccountingStorageTRES") is None:
        lines += ["AccountingStorageTRES=gres/gpu"]
    if value(conf, "GresTypes") is None:
        lines += ["GresTypes=gpu"]
    node.machine.write(path.resolve(), "\n".join(lines) + "\n")
    if not _included(conf):
        # By its name alone: a configless slurmd is sent no file that is included by its path, looks
        # for it on its own node, and ends a minute later.
        add_line(node, conf, f"include {path.name}")


def _included(conf: Path) -> bool:
    text = conf.read_text() if conf.is_file() else ""
    return re.search(r"(?im)^[ \t]*include[ \t]+\S*accounting\.conf", text) is not None
