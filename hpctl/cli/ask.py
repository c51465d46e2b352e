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
from datetime import datetime
from typing import TYPE_CHECKING

from hpctl.cli import output
from hpctl.cli.gather import World
from hpctl.cli.output import Exit
from hpctl.core.journal import RequestTaken
from hpctl.core.model import NodeName, SlurmJob
from hpctl.core.requests import NOW, take
from hpctl.core.view import Request, View, jobs_on
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


@dataclass(frozen=True, slots=True)
class JobHere:
    """A job that holds the node. `recoverable`: Slurm would run it again."""

    id: int
    user: str
    name: str
    state: str
    nodes: int
    recoverable: bool


@dataclass(frozen=True, slots=True)
class PreviewView:
    """One node before a reboot or replacement. `answer`: what the daemon would say now. `now`: its
    jobs are not waited for."""

    node: str
    verb: str
    instance: str
    jobs: tuple[JobHere, ...]
    open_recovery: str
    would_open: bool
    answer: str
    now: bool = False


@dataclass(frozen=True, slots=True)
class PreviewsView:
    """What `--dry-run` shows."""

    as_of: datetime
    previews: tuple[PreviewView, ...]


def previews(w: World, verb: str, names: tuple[str, ...], by: str) -> PreviewsView:
    """Look at each node. Needs Slurm's view; without the cloud's, its gates pass."""
    view = w.view()
    here = jobs_on([NodeName(n) for n in names], view.scheduler.jobs)
    return PreviewsView(
        w.now,
        tuple(_preview(w, view, verb, NodeName(n), here[NodeName(n)], by) for n in names),
    )


def _preview(
    w: World, view: View, verb: str, name: NodeName, jobs: list[SlurmJob], by: str
) -> PreviewView:
    rec, instance = w.state.node_recovery(name), view.instance(name)
    health = w.health.get(name)
    # The daemon's own decision, on what is known here: a preview that cannot disagree with it.
    *opened, answer = take(Request(0, w.now, verb, name, by, "a preview"), view, w.policy, w.now)
    assert isinstance(answer, RequestTaken)
    return PreviewView(
        node=name,
        verb=verb.removesuffix(NOW),
        instance=instance.id if instance else (health.generation.instance if health else ""),
        jobs=tuple(
            JobHere(j.id, j.user, j.name, j.state, len(j.nodes), j.recoverable)
            for j in sorted(jobs, key=lambda j: j.id)
            if j.running or j.completing
        ),
        open_recovery=rec.id if rec else "",
        would_open=bool(opened) and answer.ok,
        answer=answer.answer,
        now=verb.endswith(NOW),
    )


def fate(job: JobHere, *, now: bool) -> str:
    """A job on a node, and what becomes of it when an order takes the node away."""
    ends = "will be requeued" if job.recoverable else "CANNOT be run again by Slurm"
    then = ends if now else "is waited for; --now requeues it"
    return f"job {job.id} ({job.name}, {job.user}) is {job.state} on {job.nodes} node(s): {then}"


def preview_lines(view: PreviewsView) -> list[str]:
    """The same for people: one paragraph a node."""
    said = []
    for p in view.previews:
        said.append(f"{p.node}: {p.verb} instance {p.instance or '(unknown)'}")
        said += [f"  {fate(job, now=p.now)}" for job in p.jobs]
        if not p.jobs:
            said.append("  no job is on it")
        if not p.would_open:
            said.append(f"  the daemon would refuse now: {p.answer}")
    return said
