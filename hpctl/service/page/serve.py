"""The page's server, until Ctrl-C or SIGTERM."""

import contextlib
import logging
import os
import shutil
import signal
import socket
from pathlib import Path

from hpctl.engine.config import Config
from hpctl.engine.explain_view import ExplainExtensions
from hpctl.service.intake.server import UvicornServerThread
from hpctl.service.page.access import StatusPageAccess
from hpctl.service.page.app import BOUNDS, StatusPageStreamer, make_status_page_application
from hpctl.service.page.follow import StatusPagePoller
from hpctl.toolkit import output
from hpctl.toolkit.errors import HpctlError

FIRST_S = 3.0
"""How long Slurm and the cloud may take before the page is served without them."""


def make_status_page_login_link(listen: str, access: StatusPageAccess) -> str:
    """Return the address to open. Raises HpctlError where it needs no link, or there is no page."""
    host, _, port = listen.rpartition(":")
    if not listen:
        raise HpctlError(
            "cannot make a link to the status page: page.listen in hpctl.yaml is not set",
            "set it, or run `hpctl page` by hand",
        )
    if host == "unix":
        raise HpctlError(
            "cannot make a link to the status page: page.listen in hpctl.yaml is the socket "
            f"{port}",
            f"open {port}: the page needs no link, because the socket's permissions decide who may "
            "open it",
        )
    host = socket.gethostname() if host in ("", "0.0.0.0") else host  # noqa: S104
    return f"http://{host}:{port}/enter/{access.link()}"


def serve_status_page(
    loaded: Config,
    listen: str,
    access: StatusPageAccess,
    explain_parts: ExplainExtensions,
    *,
    by_hand: bool,
) -> None:
    """Serve until Ctrl-C or SIGTERM; `by_hand` prints a link that is good once.

    Raises HpctlError where the page cannot listen.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Before any thread begins: each has them blocked, and this one waits for them.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with contextlib.closing(StatusPagePoller(loaded)) as follower:
        listener = _open_listening_socket(listen, loaded.access.group)
        follower.look(FIRST_S)
        hub = StatusPageStreamer(follower, explain_parts)
        server = UvicornServerThread(make_status_page_application(hub, access), bounds=BOUNDS)
        server.start(listener=listener)
        if by_hand:
            port = server.port
            output.print_exact_text(
                make_status_page_login_link(f"{listen.rpartition(':')[0]}:{port}", access)
            )
        signal.sigwait(ends)
        hub.close()
        server.stop()


def _open_listening_socket(listen: str, group: str) -> socket.socket:
    """Return the socket; a file is for its owner and for access.group alone. Raises HpctlError."""
    host, _, port = listen.rpartition(":")
    listener = socket.socket(socket.AF_UNIX if host == "unix" else socket.AF_INET)
    try:
        if host != "unix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host or "0.0.0.0", int(port)))  # noqa: S104
        else:
            with socket.socket(socket.AF_UNIX) as probe:
                if Path(port).is_socket() and probe.connect_ex(port) != 0:
                    Path(port).unlink()  # no process serves it
            before = os.umask(0o177)
            listener.bind(port)
            os.umask(before)
            if group:
                shutil.chown(port, group=group)
                Path(port).chmod(0o660)
        listener.listen(64)
    except (OSError, OverflowError, LookupError, ValueError) as error:
        listener.close()
        hint = "write HOST:PORT, of a place that nothing else serves (ss -ltnxp)"
        raise HpctlError(f"the status page cannot listen on {listen}: {error}", hint) from error
    return listener
