"""Asking the daemon for something, and waiting for its answer."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import time
from collections.abc import Iterable, Sequence, Set
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING

import click
from msgspec import Struct

from hpctl.engine.journal.events import COMMANDS, RequestTaken
from hpctl.engine.views import NodeRecoveryView
from hpctl.toolkit import output
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.hostlist import HostlistError, expand_hostlist
from hpctl.toolkit.output import ExitCode

if TYPE_CHECKING:
    from hpctl.engine.config import Config


ANSWER_S = 5.0


LOOK_S = 0.05


COPY_LOOK_S, COPY_ANSWER_S = 0.5, 20.0
"""Seconds between two looks at a copy of the journal, and how long one with an answer may be
awaited: the daemon makes a copy at most every second, and in a 20th of the time."""


SEND_S = 5.0


class RequestView(Struct, frozen=True):
    """One request. `answered` is false while it is still queued; `ok` means nothing then."""

    id: int
    verb: str
    target: str
    by: str
    answered: bool
    ok: bool
    answer: str


class RequestsView(Struct, frozen=True):
    """What a request command shows. `recoveries`: those that were followed, as they ended."""

    requests: tuple[RequestView, ...]
    recoveries: tuple[NodeRecoveryView, ...] = ()


def find_invoking_user() -> str:
    """Return who is asking: behind sudo, the person, because root may act for any user.

    SUDO_USER counts for root alone: anybody can set a variable.
    """
    uid = os.getuid()
    if uid == 0 and (person := os.environ.get("SUDO_USER")):
        return person
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def send_operator_requests(
    config: Config, verb: str, targets: Sequence[str], *, wait_s: float = ANSWER_S, detail: str = ""
) -> RequestsView:
    """Ask for one thing for each target; answers what the daemon said within `wait_s` seconds, or
    COPY_ANSWER_S for a user who reads a copy of the journal.

    `detail`: what else the request says, as JSON.

    The leader's intake takes requests and learns from MUNGE who asks. Where no daemon answers,
    who may write to the journal's file leaves the request there for the next one.
    """
    by = find_invoking_user()
    journal = config.state_dir / "journal.db"
    if config.database_url is None and not journal.exists():
        raise ServiceUnavailable(
            f"hpctl's daemon has never run here: there is no journal {journal}",
            "start the daemon (hpctl daemon run), or give the configuration of a running one with "
            "--config",
        )
    ids = {_send_request_to_daemon(config, verb, target, by, detail): target for target in targets}
    if wait_s > 0:
        output.echo("hpctl: waiting for the daemon ...", err=True)
    taken = wait_for_request_answers(config, ids.keys(), wait_s)
    rows = []
    for number, target in ids.items():
        got = taken.get(number)
        row = RequestView(
            id=number,
            verb=verb,
            target=target,
            by=by,
            answered=got is not None,
            ok=got is not None and got.ok,
            answer="" if got is None else got.answer,
        )
        rows.append(row)
    return RequestsView(tuple(rows))


def wait_for_request_answers(
    config: Config, numbers: Set[int], wait_s: float
) -> dict[int, RequestTaken]:
    """Return the daemon's answers to these requests, by number, as soon as all are there or the
    seconds are over.

    Who may not write the journal reads a copy of it, which has no answer that is later than it. For
    each look another copy is requested, and the wait is longer.
    """
    from hpctl.engine.adapters import open_journal_reader

    journal = config.state_dir / "journal.db"
    is_copy = config.database_url is None and not os.access(journal, os.W_OK)
    taken: dict[int, RequestTaken] = {}
    if is_copy and wait_s > 0:
        wait_s = max(wait_s, COPY_ANSWER_S)
    until = time.monotonic() + wait_s
    store = open_journal_reader(config)
    try:
        while True:
            for number in numbers - taken.keys():
                answer = store.answer(number)
                if answer is not None:
                    taken[number] = answer
            if len(taken) == len(numbers) or time.monotonic() >= until:
                return taken
            time.sleep(COPY_LOOK_S if is_copy else LOOK_S)
            if is_copy:
                store.close()
                store = open_journal_reader(config)
    finally:
        store.close()


def _send_request_to_daemon(config: Config, verb: str, target: str, by: str, detail: str) -> int:
    """Hand one request to the daemon; answers its number. Raises HpctlError with its refusal."""
    import http.client

    from hpctl.engine.adapters import open_journal_reader
    from hpctl.wire import reports as wire
    from hpctl.wire.heads import HeadNodeAddress, format_refusal_response, post_request_to_leader

    heads = [HeadNodeAddress.parse(url) for url in config.heads] or [
        HeadNodeAddress.here(config.intake.listen)
    ]
    if len(heads) > 1:
        with contextlib.suppress(HpctlError), closing(open_journal_reader(config)) as store:
            led = store.daemon()
            heads.sort(key=lambda head: not led or f"{head.host}:{head.port}" != led.address)
    named = by if os.getuid() == 0 else ""
    body = wire.encode_operator_request(verb, target, named, detail)
    until = time.monotonic() + SEND_S
    try:
        status, answer = post_request_to_leader(
            heads, wire.REQUESTS_PATH, body, until, config.intake.munge_socket, once=True
        )
    except (OSError, http.client.HTTPException, ServiceUnavailable) as error:
        asked = ", ".join(f"{head.host}:{head.port}" for head in heads)
        return _queue_request_in_journal(config, verb, target, by, f"{asked}: {error}", detail)
    if status == http.client.OK:
        return int(json.loads(answer)["request"])
    if status == http.client.MISDIRECTED_REQUEST:
        raise ServiceUnavailable(
            f"no head node's daemon can take the request now: {format_refusal_response(answer)}",
            "run the command again in some seconds; check that `heads` in hpctl.yaml names every "
            "head node",
        )
    if status >= http.client.INTERNAL_SERVER_ERROR:
        raise ServiceUnavailable(
            f"hpctl's daemon cannot take the request now: {format_refusal_response(answer)}",
            "run the command again in some seconds",
        )
    raise HpctlError(
        f"hpctl's daemon refuses the request: {format_refusal_response(answer)}",
        "fix the cause in the message",
    )


def _queue_request_in_journal(  # noqa: PLR0913 -- a request, and why it is left
    config: Config, verb: str, target: str, by: str, why: str, detail: str
) -> int:
    """Leave a request in the journal's file for the next daemon. Raises HpctlError."""
    from hpctl.engine.adapters import open_journal_writer
    from hpctl.engine.wake import wake_daemon

    journal = config.state_dir / "journal.db"
    # SQLite writes its log beside the database, so the directory counts as well.
    mine = os.access(journal, os.W_OK) and os.access(config.state_dir, os.W_OK)
    if config.database_url is not None or not mine:
        raise ServiceUnavailable(
            f"hpctl's daemon does not answer ({why})",
            "start the daemon (hpctl doctor says what is wrong); while it does not run, only a "
            "user who may write to a"
            " SQLite journal can leave a request for it: try sudo",
        )
    with closing(open_journal_writer(config)) as store:
        number = store.ask(verb, target, by, output.get_current_utc_time(), detail=detail)
        wake_daemon(config.state_dir)
        return number


def print_request_answers_and_exit(view: RequestsView, as_json: bool, waited: bool) -> None:
    """Print the answers and leave: 0 all agreed, 1 one refused, 3 one is still queued."""
    if as_json:
        output.echo(output.format_view_json("requests", view))
    else:
        print_request_answers(view, waited)
    if any(r.answered and not r.ok for r in view.requests):
        output.exit_with_code(ExitCode.PROBLEM)
    if waited and any(not r.answered for r in view.requests):
        output.exit_with_code(ExitCode.CANNOT_TELL)


def print_request_answers(view: RequestsView, waited: bool) -> None:
    """Print what the daemon answered to each request, one line each."""
    for row in view.requests:
        output.echo(_format_request_answer(row, waited))


def _format_request_answer(row: RequestView, waited: bool) -> str:
    what = f"{COMMANDS.get(row.verb, row.verb)} {row.target}".strip()
    if row.answered:
        return f"{what}: {row.answer or ('done' if row.ok else 'refused')}"
    queued = f"{what}: queued as request {row.id}; the daemon takes it when it runs"
    return f"{queued} (none answered: hpctl status)" if waited else queued


class JobOnNode(Struct, frozen=True):
    """A job that holds the node. `recoverable`: Slurm would run it again."""

    id: int
    user: str
    name: str
    state: str
    nodes: int
    recoverable: bool


def describe_job_outcome_on_node_removal(job: JobOnNode, *, now: bool) -> str:
    """Return a job on a node, and what becomes of it when an order takes the node away."""
    ends = "will be requeued" if job.recoverable else "CANNOT be run again by Slurm"
    then = ends if now else "is waited for; --now requeues it"
    return f"job {job.id} ({job.name}, {job.user}) is {job.state} on {job.nodes} node(s): {then}"


def expand_target_hostlist(target: str) -> tuple[str, ...]:
    """Return the names of a hostlist such as `gpu-[3-5]`. Raises UsageError where it is none."""
    try:
        return expand_hostlist(target)
    except HostlistError as error:
        raise click.UsageError(f"{target!r}: {error}") from error


def expand_hostlists(targets: Iterable[str]) -> list[str]:
    """Return the names of several hostlists, in their order. Raises UsageError."""
    return list(chain.from_iterable(map(expand_target_hostlist, targets)))
