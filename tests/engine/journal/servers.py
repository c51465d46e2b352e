"""Database servers of the tests' own: in a temporary directory, on a unix socket, as nobody."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

START_S = 60.0


def program(name: str, package: str, places: Sequence[Path] = ()) -> str:
    """A server's program. Fails the test, with the command that installs it, where it is not."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *map(str, places)])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.fail(
            f"{name} is not installed. On Debian: "
            f"apt-get install --no-install-recommends {package}",
            pytrace=False,
        )
    return found


def _drop_privileges(last_words: signal.Signals) -> list[str]:
    """Neither server runs as root. It goes with the test process, however that ends."""
    drop = ["--reuid=nobody", "--regid=nogroup", "--clear-groups"] if os.geteuid() == 0 else []
    return ["setpriv", *drop, f"--pdeathsig={last_words.name}", "--"]


class Server:
    """One server process, and a fresh database in it for whoever asks."""

    admin_url: str
    socket_name: str
    create = "CREATE DATABASE {name}"
    die_with = signal.SIGKILL

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="hpctl-db-"))
        self._made = 0
        self._process: subprocess.Popen[bytes] | None = None
        if os.geteuid() == 0:
            shutil.chown(self.home, "nobody", "nogroup")
        try:
            self.prepare()
            self._process = self._run(self.command())
            self._await()
        except BaseException:
            self.stop()
            raise

    def prepare(self) -> None:
        """Write the data directory."""

    def command(self) -> list[str]:
        """How the server is started."""
        raise AssertionError

    def url(self, database: str) -> str:
        """The SQLAlchemy URL of one database, in the form that operators write."""
        raise AssertionError

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(
                [*_drop_privileges(self.die_with), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.home,
                # TMPDIR: two MariaDB servers that start at once in one directory take each
                # other's temporary tables away.
                env={
                    "PATH": os.environ["PATH"],
                    "LC_ALL": "C.UTF-8",
                    "HOME": str(self.home),
                    "TMPDIR": str(self.home),
                },
            )

    def finish(self, command: list[str]) -> None:
        """Run a command to its end, as the server's user."""
        with self._run(command) as process:
            code = process.wait(timeout=START_S)
        assert code == 0, (self.home / "log").read_text()

    def execute(self, statement: str) -> None:
        """Say something to the server as its administrator."""
        engine = create_engine(self.admin_url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as c:
                c.execute(text(statement))
        finally:
            engine.dispose()

    def _await(self) -> None:
        limit = time.monotonic() + START_S
        while not self._answers():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > limit:
                pytest.fail(f"{self.command()[0]}: {(self.home / 'log').read_text()[-3000:]}")
            time.sleep(0.1)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(self.home / self.socket_name)):
                return False
        try:
            self.execute("SELECT 1")
        except OperationalError:  # it listens before it has recovered its data
            return False
        return True

    def fresh(self) -> str:
        """The URL of a new, empty database."""
        self._made += 1
        name = f"hpctl_{self._made}"
        self.execute(self.create.format(name=name))
        return self.url(name)

    def stop(self) -> None:
        """End the process, by its id, and remove its files: nothing in it is worth a goodbye."""
        if self._process is not None:
            self._process.send_signal(self.die_with)
            self._process.wait(timeout=60)
        shutil.rmtree(self.home, ignore_errors=True)

    @contextmanager
    def away(self):
        """Kill it as a crash would; afterwards it runs again, on the same data."""
        self._process.send_signal(self.die_with)
        self._process.wait(timeout=60)
        try:
            yield
        finally:
            self._process = self._run(self.command())
            self._await()


class PostgreSQL(Server):
    """Debian's `postgresql`: its programs are in a directory of each version's own."""

    socket_name = ".s.PGSQL.5432"
    die_with = signal.SIGQUIT  # "immediate shutdown": no last words, but its children go too

    @property
    def admin_url(self) -> str:
        return self.url("postgres").replace("postgresql:", "postgresql+psycopg:")

    def _program(self, name: str) -> str:
        versions = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        return program(name, "postgresql", versions)

    def prepare(self) -> None:
        options = ["--auth=trust", "--username=hpctl", "--encoding=UTF8", "--no-sync"]
        self.finish([self._program("initdb"), f"--pgdata={self.home}/data", *options])

    def command(self) -> list[str]:
        # A killed process loses nothing for want of fsync, only a machine without power does.
        settings = ["listen_addresses=", "fsync=off", f"unix_socket_directories={self.home}"]
        options = [word for setting in settings for word in ("-c", setting)]
        return [self._program("postgres"), "-D", f"{self.home}/data", *options]

    def url(self, database: str) -> str:
        return f"postgresql://hpctl@/{database}?host={self.home}"


class MariaDB(Server):
    """Debian's `mariadb-server-core`: the server without a service."""

    socket_name = "sql.sock"
    # The default of a server that nobody configured for us: not the character set we need.
    create = "CREATE DATABASE {name} CHARACTER SET latin1"

    @property
    def admin_url(self) -> str:
        return self.url("mysql").replace("mariadb:", "mariadb+pymysql:")

    def _program(self, name: str) -> str:
        return program(name, "mariadb-server-core mariadb-client-core")

    def _common(self) -> list[str]:
        return ["--no-defaults", f"--datadir={self.home}/data"]

    def prepare(self) -> None:
        options = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        (self.home / "data").mkdir()
        if os.geteuid() == 0:
            shutil.chown(self.home / "data", "nobody", "nogroup")
        self.finish([self._program("mariadb-install-db"), *self._common(), *options])

    def command(self) -> list[str]:
        files = [f"--socket={self.home}/{self.socket_name}", f"--pid-file={self.home}/sql.pid"]
        options = ["--skip-networking", "--innodb-buffer-pool-size=16M", "--sql-mode="]
        return [self._program("mariadbd"), *self._common(), *files, *options]

    def url(self, database: str) -> str:
        return f"mariadb://root@localhost/{database}?unix_socket={self.home}/{self.socket_name}"
