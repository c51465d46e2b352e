"""`hpctl daemon` and `hpctl config`: what a head node serves, and by which settings."""

import click

from hpctl.toolkit import output
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.lazy_commands import LazyCommandGroup
from hpctl.toolkit.output import config_option


@click.group(cls=LazyCommandGroup, short_help="The head-node daemon, and which head leads.")
def daemon() -> None:
    """The head-node daemon, and which head leads (docs/head-nodes.md)."""


@daemon.command()
@config_option
@click.option("--log-level", default="info", show_default=True, help="debug, info or warning.")
def run(config: str, log_level: str) -> None:
    """Run the daemon until SIGTERM. SIGHUP reads the configuration again."""
    import logging

    from hpctl.daemon.main import run_daemon

    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    raise SystemExit(run_daemon(config, lambda line: output.echo(f"hpctl: {line}", err=True)))


@click.group(
    cls=LazyCommandGroup,
    table={
        "show": (
            "hpctl.daemon.config_show_command:show",
            "Print every key with its value, and where that comes from.",
        )
    },
    short_help="Check and show the daemon's configuration.",
)
def config() -> None:
    """Check and show the daemon's configuration (docs/configuration.md)."""


@config.command()
@click.argument("path", required=False, type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(path: str | None, as_json: bool) -> None:
    """Validate a file and its database: every problem at once. Exit code 1 when there is one."""
    import json
    import os

    from hpctl.daemon.configuration_checks import CHECKS
    from hpctl.engine.adapters import build_fault_rules_with_overrides, open_journal_reader
    from hpctl.engine.config import DEFAULT_PATH, read_config_file

    path = path or os.environ.get("HPCTL_CONFIG", DEFAULT_PATH)
    problems: list[str] = []
    try:
        loaded = read_config_file(path)
        build_fault_rules_with_overrides(loaded)
        for find_problems in CHECKS:
            problems += [f"{error}: {error.hint}" for error in find_problems(loaded)]
        if loaded.database_url:
            try:
                open_journal_reader(loaded).close()
            except ServiceUnavailable as error:
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
    from hpctl.engine.config import format_example_config as text

    output.echo(text(), nl=False)
