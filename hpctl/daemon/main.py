"""`hpctl daemon run`: one daemon after another in one process, and its exit code."""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable

from hpctl.daemon.composition import compose_daemon
from hpctl.daemon.journal_guard import RETRY_S
from hpctl.daemon.lifecycle import Daemon
from hpctl.daemon.readiness import extend_start_timeout
from hpctl.engine.config import read_config_file
from hpctl.engine.journal.state import InconsistentEventError
from hpctl.engine.journal.store import LeaseLostError
from hpctl.toolkit.errors import CorruptJournalError, ServiceUnavailable
from hpctl.wire.systemd import pass_listening_socket_across_exec

log = logging.getLogger("hpctl.daemon")


def run_daemon(config_path: str, say: Callable[[str], None]) -> int:
    """Run a daemon to its end; return the exit code. `say` prints why it could not go on.

    A daemon that loses the lease executes the program again, as a standby in the same process.
    """
    try:
        again = compose_daemon_when_database_ready(config_path).run()
    except (CorruptJournalError, InconsistentEventError) as error:
        say(f"the journal is corrupt: {error}")
        say(getattr(error, "hint", "") or "see docs/operations.md, 'A corrupt journal'")
        return 1
    except LeaseLostError as error:
        say(str(error))
        return 1
    if again is not None:
        reexecute_daemon_program(again.listener)
    return 0


def reexecute_daemon_program(listener: int | None) -> None:
    """Replace this program by a fresh one, which takes over the listening socket."""
    if listener is not None:
        pass_listening_socket_across_exec(listener)
    # Until the new program has a handler, `systemctl reload` would end it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def compose_daemon_when_database_ready(config_path: str) -> Daemon:
    """Compose the daemon, once the database that several heads share answers. Raises HpctlError."""
    while True:
        try:
            return compose_daemon(config_path)
        except ServiceUnavailable as error:
            if read_config_file(config_path).database_url is None:
                raise
            log.error("trouble=%s", error)
        extend_start_timeout("waiting for the database")
        time.sleep(RETRY_S)
