"""Waiting in view: the options of every command that waits, and what Ctrl-C means.

Progress goes to standard error, the result to standard output. Ctrl-C ends the looking, not what
the service does: the exit code is 130 then, as a shell's for SIGINT.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from msgspec import Struct
from msgspec.structs import replace

from hpctl.clusters import progress
from hpctl.clusters.commands.change_view import (
    open_cluster_progress_screen,
    print_outcome_and_exit,
    select_wait_result_fields,
)
from hpctl.clusters.commands.context import (
    add_cluster_options,
    cluster_argument,
    make_missing_cluster_error,
    resolve_cluster_context,
)
from hpctl.clusters.progress import DELETED
from hpctl.toolkit import output
from hpctl.toolkit.arguments import DurationType
from hpctl.toolkit.errors import ResourceNotFound
from hpctl.toolkit.interrupts import is_ctrl_c_abort
from hpctl.toolkit.lazy_commands import INTERRUPTED
from hpctl.toolkit.output import ExitCode

if TYPE_CHECKING:
    from hpctl.clusters.apply import PollSchedule
    from hpctl.clusters.progress import ClusterProgress, Until
    from hpctl.vocabulary.ports import AwsClientFactory


F = TypeVar("F", bound=Callable[..., Any])


class WaitOptions(Struct, frozen=True):
    """How a command waits, as its options say."""

    wait: bool = True
    timeout_s: float = 10800.0
    patience_s: float = 900.0
    every_s: float = 10.0

    @property
    def patience(self) -> PollSchedule:
        """Return how an order in doubt is looked for."""
        from hpctl.clusters.apply import PollSchedule

        return PollSchedule(time.sleep, every_s=min(5.0, self.every_s))


GIVE_UP = "When to stop waiting; the work continues."
FOLLOW = "Follow the work until it is done, or leave as soon as it is ordered."
yes_option = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done; do nothing."
)


def combine_click_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Return these options, in this order."""

    def apply_click_options(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return apply_click_options


def make_wait_option(text: str, name: str = "wait", *, show: bool = True) -> Callable[[F], F]:
    """`--wait/--no-wait` as `name`."""
    return click.option("--wait/--no-wait", name, default=True, show_default=show, help=text)


def make_duration_option(
    name: str, default: str | None, text: str, *, most: str = ""
) -> Callable[[F], F]:
    """`--<name>` as `<name>_s`."""
    return click.option(
        f"--{name}", f"{name}_s", type=DurationType(most=most), default=default,
        show_default=default is not None, help=text,
    )  # fmt: skip


def add_wait_and_timing_options(command: F) -> F:
    """`--wait/--no-wait` and the `add_wait_timing_options`: the command gets them as `waiting`."""
    return make_wait_option(FOLLOW)(add_wait_timing_options(command))


def add_wait_timing_options(command: F) -> F:
    """`--timeout`, `--patience`, `--every`: the command gets them as `waiting`."""

    @functools.wraps(command)
    def run_with_wait_options(
        timeout_s: float, patience_s: float, every_s: float, wait: bool = True, **others: Any
    ) -> Any:
        try:
            return command(waiting=WaitOptions(wait, timeout_s, patience_s, every_s), **others)
        except KeyboardInterrupt:
            text = (
                "hpctl: interrupted. What was ordered continues: follow it with the same command or"
                " `hpctl cluster wait`."
            )
            output.echo(output.wrap_text_to_screen(text), err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None

    patience = "How long to wait for failed nodes when only these are missing."
    return combine_click_options(
        make_duration_option("timeout", "3h", GIVE_UP),
        make_duration_option("patience", "15min", patience),
        make_duration_option("every", "10s", "How often to look."),
    )(run_with_wait_options)  # type: ignore[return-value]


def confirm_or_exit(question: str, yes: bool) -> None:
    """Ask on standard error. Leaves with exit code 1 unless the answer is yes, 130 for Ctrl-C."""
    asked = output.wrap_text_to_screen(question, len(" [y/N]: "))
    if not yes and not ask_confirmation(lambda: output.confirm(asked)):
        exit_unconfirmed()


def ask_confirmation(ask: Callable[[], bool]) -> bool:
    """What the answer to a question is; no where the input has ended. Ctrl-C goes through."""
    try:
        return ask()
    except click.Abort as abort:
        if is_ctrl_c_abort(abort):
            raise
        output.echo(err=True)
        return False


def exit_unconfirmed() -> None:
    """Leave: nothing was confirmed."""
    output.echo(output.wrap_text_to_screen(output.NOT_CONFIRMED), err=True)
    output.exit_with_code(ExitCode.PROBLEM)


def follow_cluster_progress(
    aws: AwsClientFactory, cluster: str, until: Until, waiting: WaitOptions
) -> ClusterProgress:
    """Draw looks at the cluster on standard error until the wait is over; the last one.

    On Ctrl-C it is the last look before it, its verdict still WAITING.
    """
    from hpctl.clusters.watch import read_cluster_progress, watch_cluster

    looks = watch_cluster(
        aws,
        cluster,
        until,
        now=output.get_current_utc_time,
        sleep=time.sleep,
        every_s=waiting.every_s,
        timeout_s=waiting.timeout_s,
    )
    last: ClusterProgress | None = None
    try:
        with open_cluster_progress_screen() as screen:
            for last in looks:
                screen.show(last)
    except KeyboardInterrupt:
        last = last or read_cluster_progress(aws, cluster, output.get_current_utc_time())
    assert last is not None
    return last


@click.command()
@cluster_argument
@click.option("--deleted", is_flag=True, help="Wait until the cluster is gone.")
@add_wait_timing_options
@output.json_option
@add_cluster_options
def wait(
    name: str | None,
    deleted: bool,
    waiting: WaitOptions,
    as_json: bool,
    cluster: str | None,
    **where: Any,
) -> None:
    """Follow a cluster until it is in service with all its nodes, or gone.

    A cluster that is being deleted is followed to its end. Exit code: 0 there, 1 failed, 3 not
    there in time, 130 interrupted by Ctrl-C.
    """
    from hpctl.clusters.watch import read_cluster_progress

    here = resolve_cluster_context(cluster=name or cluster, **where)
    first = read_cluster_progress(here.aws, here.cluster, output.get_current_utc_time())
    if first.status == DELETED and not deleted:
        absent = ResourceNotFound(
            f"AWS has no HyperPod cluster {here.cluster!r} in this account and region",
            "check the name, --region and --profile: hpctl cluster list",
            code="ResourceNotFound",
        )
        raise make_missing_cluster_error(here.aws, here.cluster, absent)
    going = deleted or first.status == "Deleting"
    judge = (
        progress.evaluate_cluster_deletion_progress
        if going
        else progress.build_in_service_wait_condition(None, waiting.patience_s)
    )
    last = follow_cluster_progress(here.aws, here.cluster, judge, waiting)
    last = replace(last, arn=last.arn or first.arn)
    short = here.cluster.rpartition("/")[2]
    if first.status == DELETED:
        gone = make_missing_cluster_error(
            here.aws,
            here.cluster,
            ResourceNotFound(
                f"AWS has no HyperPod cluster {short!r} in this account and region",
                "check the name, --region and --profile: hpctl cluster list",
            ),
        )
        last = replace(last, why="; ".join(filter(None, (str(gone), gone.hint))))
    fields = select_wait_result_fields(last)
    fields["pick_up"] = f"hpctl cluster wait {here.cluster}" + " --deleted" * going
    print_outcome_and_exit("wait", last.cluster or short, as_json, **fields)
