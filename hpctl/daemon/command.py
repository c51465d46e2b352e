"""`hpctl daemon`, `hpctl page` and `hpctl config`: what a head node serves, in the foreground."""

from __future__ import annotations

import contextlib
import secrets
import socket
from typing import TYPE_CHECKING

import click

from hpctl.engine import config_loading
from hpctl.toolkit import output
from hpctl.toolkit.errors import HpctlError, Unavailable
from hpctl.toolkit.output import config_option

if TYPE_CHECKING:
    from hpctl.engine.config import Config
    from hpctl.service.page.access import Access


@click.group(short_help="The head-node daemon.")
def daemon() -> None:
    """The head-node daemon."""


@daemon.command()
@config_option
@click.option("--log-level", default="info", show_default=True, help="debug, info or warning.")
def run(config: str, log_level: str) -> None:
    """Run the daemon until SIGTERM. SIGHUP reads the configuration again."""
    import logging

    from hpctl.daemon.main import run as run_daemon

    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    raise SystemExit(run_daemon(config, lambda line: output.echo(f"hpctl: {line}", err=True)))


@click.group(short_help="Check or print the daemon's configuration.")
def config() -> None:
    """Check or print the daemon's configuration."""


@config.command()
@click.argument("path", required=False, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(path: str | None, as_json: bool) -> None:
    """Validate a file and its database: every problem at once. Exit code 1 when there is one."""
    import json
    import os

    from hpctl.engine.adapters import make_rules, open_reader
    from hpctl.engine.config import DEFAULT_PATH, load
    from hpctl.service.notify.sinks import unusable

    path = path or os.environ.get("HPCTL_CONFIG", DEFAULT_PATH)
    problems: list[str] = []
    try:
        loaded = load(path)
        make_rules(loaded)
        problems = [f"{error}: {error.hint}" for error in unusable(loaded.notify.sinks)]
        if loaded.page.listen:
            from hpctl.service.page.access import Access

            Access.of(loaded.page)
        if loaded.database_url:
            try:
                open_reader(loaded).close()
            except Unavailable as error:
                # Without a cause nothing failed: the daemon makes or migrates what is in it.
                if error.__cause__:
                    raise
    except HpctlError as error:
        if not as_json:
            raise
        problems += list(getattr(error, "problems", [f"{error}: {error.hint}"]))
    if as_json:
        document = {"schema": "hpctl.config.check/1", "path": path, "problems": problems}
        output.echo(json.dumps(document, indent=2))
    for problem in problems if not as_json else ():
        output.echo(f"{path}: {problem}")
    if not problems and not as_json:
        output.echo(f"{path}: fine (mode {loaded.mode}, provider {loaded.cluster.provider})")
    raise SystemExit(1 if problems else 0)


@config.command()
def example() -> None:
    """Print a file with every key at its default."""
    from hpctl.engine.config import example as text

    output.echo(text(), nl=False)


FIRST_S = 3.0
"""How long Slurm and the cloud may take before the page is served without them."""
HERE = "127.0.0.1:8472"


@click.command()
@click.option("--listen", metavar="HOST:PORT", help=f"Serve here with a token of its own [{HERE}].")
@click.option("--link", is_flag=True, help="Print a link to the daemon's page, good once.")
@output.config_option
def page(listen: str | None, link: bool, config: str) -> None:
    """Serve a read-only web page of what hpctl sees and does.

    The daemon serves one by itself where page.listen is set. From your own machine: `ssh -L
    8472:127.0.0.1:8472 HEAD`, then open the link. Ctrl-C ends it.
    """
    from hpctl.service.page.access import Access

    loaded = config_loading.load_config(config)
    if link:
        output.exact(_link(loaded.page.listen, Access.of(loaded.page)))
    elif listen or not loaded.page.listen:
        token = secrets.token_bytes(32)
        _serve(loaded, listen or HERE, Access(lambda: token, loaded.page.hosts), by_hand=True)
    else:
        _serve(loaded, loaded.page.listen, Access.of(loaded.page), by_hand=False)


def _link(listen: str, access: Access) -> str:
    """The address to open. Raises HpctlError where it needs no link, or there is no page."""
    host, _, port = listen.rpartition(":")
    if not listen or host == "unix":
        hint = "set it, or run `hpctl page` by hand"
        why = f"{port}: whoever may open that socket needs no link" if listen else hint
        raise HpctlError(f"page.listen is {listen or 'not set'}", why)
    host = socket.gethostname() if host in ("", "0.0.0.0") else host  # noqa: S104
    return f"http://{host}:{port}/enter/{access.link()}"


def _serve(loaded: Config, listen: str, access: Access, *, by_hand: bool) -> None:
    """Until Ctrl-C or SIGTERM."""
    import logging
    import signal

    from hpctl.service.intake.server import IntakeServer
    from hpctl.service.page.app import BOUNDS, Hub, application
    from hpctl.service.page.follow import Follower

    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    # Before any thread begins: each has them blocked, and this one waits for them.
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    with contextlib.closing(Follower(loaded)) as follower:
        listener = _listener(listen, loaded.access.group)
        follower.look(FIRST_S)
        hub = Hub(follower)
        server = IntakeServer(application(hub, access), bounds=BOUNDS)
        server.start(listener=listener)
        if by_hand:
            port = server.port
            output.exact(_link(f"{listen.rpartition(':')[0]}:{port}", access))
        signal.sigwait(ends)
        hub.close()
        server.stop()


def _listener(listen: str, group: str) -> socket.socket:
    """The socket; a file is for its owner and for access.group alone. Raises HpctlError."""
    import os
    import shutil
    from pathlib import Path

    host, _, port = listen.rpartition(":")
    listener = socket.socket(socket.AF_UNIX if host == "unix" else socket.AF_INET)
    try:
        if host != "unix":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host or "0.0.0.0", int(port)))  # noqa: S104
        else:
            with socket.socket(socket.AF_UNIX) as probe:
                if Path(port).is_socket() and probe.connect_ex(port) != 0:
                    Path(port).unlink()  # nobody serves it any more
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
        raise HpctlError(f"the page cannot listen on {listen}: {error}", hint) from error
    return listener
