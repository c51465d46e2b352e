"""Write an operator's request down, wake the daemon, and wait a little for its answer.

The CLI never acts: the daemon takes the request, decides under its own gates, and journals both.
"""

from __future__ import annotations

import json
import os
import pwd
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpctl.cli import output
from hpctl.cli.output import Exit
from hpctl.core.journal import RequestTaken
from hpctl.errors import HpctlError, Unavailable

if TYPE_CHECKING:
    from hpctl.config import Config

ANSWER_S = 5.0
LOOK_S = 0.05
SEND_S = 5.0


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request. `answered` is false while it is still queued; `ok` means nothing then."""

    id: int
    verb: str
    target: str
    by: str
    answered: bool
    ok: bool
    answer: str


@dataclass(frozen=True, slots=True)
class RequestsView:
    """What a request command shows."""

    requests: tuple[RequestView, ...]


def invoking_user() -> str:
    """Who is asking: behind sudo, the person, because root is everybody.

    SUDO_USER counts for root alone: anybody can set a variable.
    """
    uid = os.getuid()
    if uid == 0 and (person := os.environ.get("SUDO_USER")):
        return person
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def ask(
    config: Config, verb: str, targets: Sequence[str], *, wait_s: float = ANSWER_S
) -> RequestsView:
    """Ask for one thing for each target; answers what the daemon said within `wait_s` seconds.

    The daemon's intake takes requests and learns from MUNGE who asks. Where no daemon answers,
    who may write to the journal's file leaves the request there for the next one.
    """
    from hpctl.wiring import open_store

    by = invoking_user()
    journal = config.state_dir / "journal.db"
    if config.database_url is None and not journal.exists():
        raise Unavailable(
            f"there is no journal at {journal}",
            "start the daemon first (hpctl daemon run), or name its file with --config",
        )
    ids = {_send(config, verb, target, by): target for target in targets}
    store = open_store(config)
    try:
        taken: dict[int, RequestTaken] = {}
        if wait_s > 0:
            output.echo("hpctl: waiting for the daemon ...", err=True)
        until = time.monotonic() + wait_s
        while True:
            for number in ids.keys() - taken.keys():
                answer = store.answer(number)
                if answer is not None:
                    taken[number] = answer
            if len(taken) == len(ids) or time.monotonic() >= until:
                break
            time.sleep(LOOK_S)
    finally:
        store.close()
    rows = []
    for number, target in ids.items():
        got = taken.get(number)
        rows.append(
            RequestView(
                id=number,
                verb=verb,
                target=target,
                by=by,
                answered=got is not None,
                ok=got is not None and got.ok,
                answer=got.answer if got else "",
            )
        )
    return RequestsView(tuple(rows))


def _send(config: Config, verb: str, target: str, by: str) -> int:
    """Hand one request to the daemon; answers its number. Raises HpctlError with its refusal."""
    import http.client

    from hpctl.protocol import reports as wire
    from hpctl.protocol.heads import Head, explained

    head = Head.here(config.intake.listen)
    named = by if os.getuid() == 0 else ""
    body = wire.encode_request(verb, target, named)
    until = time.monotonic() + SEND_S
    try:
        status, said = head.post(wire.REQUESTS_PATH, body, until, config.intake.munge_socket)
    except (OSError, http.client.HTTPException, Unavailable) as error:
        return _leave(config, verb, target, by, f"{head.host}:{head.port}: {error}")
    if status == http.client.OK:
        return int(json.loads(said)["request"])
    if status >= http.client.INTERNAL_SERVER_ERROR:
        raise Unavailable(f"the daemon cannot take the request: {explained(said)}")
    raise HpctlError(f"the daemon refuses: {explained(said)}")


def _leave(config: Config, verb: str, target: str, by: str, why: str) -> int:
    """Leave a request in the journal's file for the next daemon. Raises HpctlError."""
    from hpctl.daemon.wake import wake
    from hpctl.wiring import open_store

    journal = config.state_dir / "journal.db"
    # SQLite writes its log beside the database, so the directory counts as well.
    mine = os.access(journal, os.W_OK) and os.access(config.state_dir, os.W_OK)
    if config.database_url is not None or not mine:
        raise Unavailable(
            f"no daemon answers ({why})",
            "start it (hpctl doctor says what is wrong); while none runs, only who may write to a"
            " SQLite journal can leave a request: try sudo",
        )
    store = open_store(config, write=True)
    try:
        number = store.ask(verb, target, by, output.now())
        wake(config.state_dir)
        return number
    finally:
        store.close()


def report(view: RequestsView, as_json: bool, waited: bool) -> None:
    """Print the answers and leave: 0 all agreed, 1 one refused, 3 one is still queued."""
    if as_json:
        output.echo(output.to_json("requests", view))
    else:
        for row in view.requests:
            output.echo(_line(row, waited))
    if any(r.answered and not r.ok for r in view.requests):
        output.leave(Exit.PROBLEM)
    if waited and any(not r.answered for r in view.requests):
        output.leave(Exit.CANNOT_TELL)


def _line(row: RequestView, waited: bool) -> str:
    what = f"{row.verb} {row.target}".strip()
    if row.answered:
        return f"{what}: {row.answer or ('done' if row.ok else 'refused')}"
    queued = f"{what}: queued as request {row.id}; the daemon takes it when it runs"
    return f"{queued} (none answered: hpctl status)" if waited else queued
