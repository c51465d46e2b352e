"""Slurm's accounting for a sandbox: a slurmdbd with a database of its own, and QOS in it."""

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from tests.daemon.chaos import Chaos
from tests.engine.journal.servers import MariaDB
from tests.live import until
from tests.process import free_port

_DATABASE = "slurm_acct_db"
"""Made before slurmdbd starts: with Debian 13's libmariadb 11.8.9 a slurmdbd that finds none makes
it and ends. The handle whose first connection has failed answers each query with error 5027, too
many columns."""
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin"])
needs_slurmdbd = pytest.mark.skipif(
    shutil.which("slurmdbd", path=PATH) is None,
    reason="slurmdbd is not installed. On Debian: apt-get install --no-install-recommends slurmdbd",
)


@contextmanager
def accounting(live: Chaos, *settings: str) -> Iterator["Slurmdbd"]:
    """Run slurmdbd beside a sandbox, and restart its slurmctld with it and with these settings."""
    server = MariaDB()
    try:
        with slurmdbd(live, server) as service:
            conf = live.sandbox.spec.layout.slurm_conf
            lines = [
                line
                for line in conf.read_text().splitlines()
                if not line.startswith("AccountingStorageType")
            ]
            lines += [
                "AccountingStorageType=accounting_storage/slurmdbd",
                "AccountingStorageHost=127.0.0.1",
                f"AccountingStoragePort={service.port}",
                f"AccountingStoragePass={live.sandbox.spec.layout.munge_socket}",
                "AccountingStorageEnforce=associations,limits,qos",
                *settings,
            ]
            conf.write_text("\n".join(lines) + "\n")
            sacctmgr(live, "add", "cluster", cluster_name(live))
            sacctmgr(live, "add", "account", "all")
            sacctmgr(live, "add", "user", "root", "account=all")
            # It has the id that slurmctld gave the cluster, of which slurmdbd gives another.
            (Path(live.sandbox.state_dir) / "ctld" / "clustername").unlink(missing_ok=True)
            restart_slurmctld(live, "SIGTERM")
            until(live.all_idle, 60, "slurmctld is back")
            yield service
    finally:
        server.stop()


class Slurmdbd:
    """A slurmdbd that a test can kill and start again."""

    def __init__(
        self, command: list[str], environ: Mapping[str, str], log: Path, port: int
    ) -> None:
        self.port = port
        self._command, self._environ, self._log = command, environ, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; return once it listens."""
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                self._command, env=self._environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self._process = process
        until(
            lambda: answers(self.port) or process.poll() is not None,
            60,
            "slurmdbd listens, or has ended",
        )
        if process.poll() is not None:
            said = self._log.read_text(errors="replace")
            raise AssertionError(f"slurmdbd ended at its start: {said[-2000:]}")

    def kill(self) -> None:
        """Kill it; return once it is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def slurmdbd(live: Chaos, server: MariaDB) -> Iterator[Slurmdbd]:
    """Run slurmdbd."""
    server.execute(f"CREATE DATABASE {_DATABASE}")
    home = Path(live.sandbox.state_dir)
    program = Path(shutil.which("slurmdbd", path=PATH) or "slurmdbd")
    plugins = sorted(program.parent.parent.glob("lib/*/slurm-wlm"))
    port = free_port()
    places = ":".join(map(str, [*plugins, *sorted(Path("/usr/lib").glob("*/slurm-wlm"))]))
    conf = home / "etc" / "slurmdbd.conf"
    conf.write_text(
        f"AuthType=auth/munge\nAuthInfo=socket={live.sandbox.spec.layout.munge_socket}\n"
        f"DbdHost=localhost\nDbdAddr=127.0.0.1\nDbdPort={port}\nSlurmUser=root\n"
        f"PluginDir={places}\nPidFile={home}/run/slurmdbd.pid\nLogFile={home}/log/slurmdbd.log\n"
        "StorageType=accounting_storage/mysql\nStorageHost=localhost\nStorageUser=root\n"
        f"StorageLoc={_DATABASE}\n"
    )
    conf.chmod(0o600)
    environ = {
        **live.sandbox.env,
        "SLURM_CONF": str(home / "etc" / "slurm.conf"),
        "MYSQL_UNIX_PORT": str(server.home / server.socket_name),
    }
    service = Slurmdbd([str(program), "-D"], environ, home / "log" / "slurmdbd.out", port)
    try:
        service.start()
        yield service
    finally:
        service.kill()


def answers(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def cluster_name(live: Chaos) -> str:
    text = live.sandbox.spec.layout.slurm_conf.read_text()
    return text.partition("ClusterName=")[2].split()[0]


def sacctmgr(live: Chaos, *args: str) -> None:
    """Run sacctmgr as an administrator."""
    live.sandbox.run(["sacctmgr", "--immediate", *args])


def restart_slurmctld(live: Chaos, signal_name: str) -> None:
    """End slurmctld by a signal, and start it again."""
    live.sandbox.signal_service("slurmctld", signal_name)
    until(lambda: not live.sandbox.status()["services"].get("slurmctld"), 60, "slurmctld ends")
    live.sandbox.start_service("slurmctld")


@dataclass(frozen=True)
class AccountedRun:
    """One run of a job in accounting. `start` and `end` are None where there is none yet."""

    state: str
    exit_code: str
    nodes: str
    start: datetime | None
    end: datetime | None


def list_runs(live: Chaos, job: str) -> list[AccountedRun]:
    """Return all runs of a job, oldest first, by `sacct --duplicates`."""
    fields = "--format=State,ExitCode,NodeList,Start,End"
    options = ("--duplicates", "--allocations", "--noheader", "--parsable2")
    done = live.sandbox.run(["sacct", *options, fields, "--jobs", job], check=False)
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return [
        AccountedRun(state, code, nodes, _time(start), _time(end))
        for state, code, nodes, start, end in rows
    ]


def _time(text: str) -> datetime | None:
    """A time of sacct's, in this machine's time zone."""
    return datetime.fromisoformat(text).astimezone() if text[:1].isdigit() else None
