"""Slurm's accounting for a sandbox: a slurmdbd with a database of its own, and QOS in it."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos
from tests.engine.journal.servers import MariaDB
from tests.live import until

PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
needs_slurmdbd = pytest.mark.skipif(
    shutil.which("slurmdbd", path=PATH) is None,
    reason="slurmdbd is not installed. On Debian: apt-get install --no-install-recommends slurmdbd",
)


@contextmanager
def accounting(live: Chaos, *settings: str) -> Iterator[None]:
    """Run slurmdbd beside a sandbox, and restart its slurmctld with it and with these settings."""
    server = MariaDB()
    try:
        with slurmdbd(live, server) as port:
            conf = live.sandbox.spec.layout.slurm_conf
            lines = [
                line
                for line in conf.read_text().splitlines()
                if not line.startswith("AccountingStorageType")
            ]
            lines += [
                "AccountingStorageType=accounting_storage/slurmdbd",
                "AccountingStorageHost=127.0.0.1",
                f"AccountingStoragePort={port}",
                f"AccountingStoragePass={live.sandbox.spec.layout.munge_socket}",
                "AccountingStorageEnforce=associations,qos",
                *settings,
            ]
            conf.write_text("\n".join(lines) + "\n")
            sacctmgr(live, "add", "cluster", cluster_name(live))
            sacctmgr(live, "add", "account", "all")
            sacctmgr(live, "add", "user", "root", "account=all")
            live.sandbox.signal_service("slurmctld", "SIGTERM")
            until(lambda: not live.sandbox.status()["services"].get("slurmctld"), 20, "it ends")
            live.sandbox.start_service("slurmctld")
            until(live.all_idle, 40, "slurmctld is back")
            yield
    finally:
        server.stop()


@contextmanager
def slurmdbd(live: Chaos, server: MariaDB) -> Iterator[int]:
    """Run slurmdbd; its port."""
    home = Path(live.sandbox.state_dir)
    program = Path(shutil.which("slurmdbd", path=PATH) or "slurmdbd")
    plugins = sorted(program.parent.parent.glob("lib/*/slurm-wlm"))
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    places = ":".join(map(str, [*plugins, *sorted(Path("/usr/lib").glob("*/slurm-wlm"))]))
    conf = home / "etc" / "slurmdbd.conf"
    conf.write_text(
        f"AuthType=auth/munge\nAuthInfo=socket={live.sandbox.spec.layout.munge_socket}\n"
        f"DbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={port}\nSlurmUser=root\n"
        f"PluginDir={places}\nPidFile={home}/run/slurmdbd.pid\nLogFile={home}/log/slurmdbd.log\n"
        "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=root\n"
        "StorageLoc=slurm_acct_db\n"
    )
    conf.chmod(0o600)
    environ = {
        **live.sandbox.env,
        "SLURM_CONF": str(home / "etc" / "slurm.conf"),
        "MYSQL_UNIX_PORT": str(server.home / server.socket_name),
    }
    with (home / "log" / "slurmdbd.out").open("ab") as log:
        process = subprocess.Popen(
            [program, "-D"], env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        until(lambda: answers(port), 30, "slurmdbd listens")
        yield port
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def answers(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cluster_name(live: Chaos) -> str:
    text = live.sandbox.spec.layout.slurm_conf.read_text()
    return text.partition("ClusterName=")[2].split()[0]


def sacctmgr(live: Chaos, *args: str) -> None:
    """Run sacctmgr as an administrator."""
    live.sandbox.run(["sacctmgr", "--immediate", *args])
