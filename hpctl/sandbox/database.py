"""The database that two heads of a sandbox share: MariaDB or PostgreSQL, whichever is here."""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from hpctl.errors import HpctlError
from hpctl.sandbox.spec import Spec

INSTALL_S = 180.0
_PLACES = ["/usr/sbin", *sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)]


class Database(Struct, frozen=True):
    """A server of our own: how its files are made, how it is run, and how it is reached."""

    install: list[str]
    command: list[str]
    socket: Path
    url: str


def choose(spec: Spec) -> Database:
    """The server that the sandbox names, or that is installed with Python's driver. Raises
    HpctlError."""
    home, named = spec.layout.database, spec.database
    data = home / "data"
    if named in ("", "mariadb") and find_spec("pymysql") and (server := _program("mariadbd")):
        sock, own = home / "sql.sock", ["--no-defaults", f"--datadir={data}"]
        files = [f"--socket={sock}", f"--pid-file={home}/sql.pid", "--skip-networking"]
        return Database(
            [_program("mariadb-install-db"), *own, "--auth-root-authentication-method=normal"],
            [server, *own, *files, "--innodb-buffer-pool-size=16M"],
            sock,
            f"mariadb://root@localhost/test?unix_socket={sock}",
        )
    if named in ("", "postgresql") and find_spec("psycopg") and (server := _program("postgres")):
        options = ["-c", "listen_addresses=", "-c", f"unix_socket_directories={home}"]
        return Database(
            [_program("initdb"), f"--pgdata={data}", "--auth=trust", "--username=hpctl"],
            [server, "-D", str(data), *options],
            home / ".s.PGSQL.5432",
            f"postgresql://hpctl@/postgres?host={home}",
        )
    named = named or "mariadb"
    packages = {"mariadb": "mariadb-server-core mariadb-client-core"}.get(named, named)
    raise HpctlError(
        f"two heads share a database, and no {named} server with its driver is here",
        f"sudo apt-get install -y --no-install-recommends {packages}; pip install 'hpctl[{named}]'",
    )


def _program(name: str) -> str:
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_PLACES])) or ""


def as_nobody(command: list[str]) -> list[str]:
    """Neither server runs as root."""
    drop = ["--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=KILL"]
    return ["setpriv", *drop, "--", *command]


def install(spec: Spec) -> None:
    """Make the server's files. Raises HpctlError."""
    home = spec.layout.database
    home.mkdir()
    shutil.chown(home, "nobody", "nogroup")
    command = as_nobody(choose(spec).install)
    env = {**os.environ, "TMPDIR": str(home), "HOME": str(home), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=INSTALL_S, check=False, cwd=home, env=env
    )
    if done.returncode != 0:
        raise HpctlError(f"{' '.join(command)}: {(done.stderr or done.stdout).strip()[-500:]}")
