"""A user whose jobs name addresses that delay, swell or inject into the mail of other users."""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from msgspec.structs import replace

from hpctl.service.notify import sinks
from hpctl.service.notify.decide import Notice
from hpctl.service.notify.outbox import (
    MOST,
    MOST_OF_OWNER,
    Outbox,
    OutboxEntry,
    find_owners_at_message_limit,
)
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.slurm_facts import SchedulerView
from tests.fakes.values import slurm_job
from tests.process import free_port
from tests.service.test_notify import Head, job_ends
from tests.service.test_notify import head as head
from tests.service.test_notify import hook as hook
from tests.waiting import until

pytestmark = [pytest.mark.adversary, pytest.mark.integration]
BOB = "zoe@x.org"
"""It sorts after all of the attacker's addresses."""


class MailServer:
    """An SMTP server that is slow for, or refuses, the attacker's addresses. `tried`: the
    recipients of each message, in order; `letters`: what was accepted."""

    def __init__(self, *, delay_s: float) -> None:
        self.tried: list[str] = []
        self.letters: list[tuple[str, str]] = []
        self._delay_s = delay_s
        port = free_port()
        self.url = f"mailto://127.0.0.1:{port}?from=hpctl@x.org&to={{mail}}"
        self._controller = Controller(self, hostname="127.0.0.1", port=port)
        self._controller.start()

    async def handle_DATA(self, server: object, session: object, envelope: Any) -> str:
        (to,) = envelope.rcpt_tos
        self.tried.append(to)
        if to != BOB:
            time.sleep(self._delay_s)
            return "550 no such user"
        self.letters.append((to, envelope.content.decode()))
        return "250 OK"

    def stop(self) -> None:
        self._controller.stop()


@pytest.fixture
def server() -> Iterator[MailServer]:
    made = MailServer(delay_s=0.5)
    yield made
    made.stop()


def serve_jobs(head: Head, jobs: dict[int, tuple[str, str]]) -> None:
    """Have Slurm know these jobs, each with its user and the address that it names."""
    now = head.slurm.as_of
    head.slurm = SchedulerView(now, head.slurm.nodes, {JobId(n): slurm_job(n) for n in jobs})
    users = "".join(f"--jobs={n}) echo 'physics {user}';;\n" for n, (user, _) in jobs.items())
    mails = "".join(
        f"{n}) echo '   MailUser={mail} MailType=FAIL';;\n" for n, (_, mail) in jobs.items()
    )
    for name, place, cases in (("squeue", 3, users), ("scontrol", 3, mails)):
        (head.place / name).write_text(f"#!/bin/sh\ncase ${place} in\n{cases}esac\n")
        (head.place / name).chmod(0o755)


def test_slow_addresses_of_one_user_cost_another_user_one_attempt(
    head: Head, server: MailServer
) -> None:
    jobs = {n: ("mallory", f"a{n}@evil.org") for n in range(1, 9)}
    jobs[9] = ("bob", BOB)
    serve_jobs(head, jobs)
    head.sinks.clear()
    head.sink("mail", server.url)
    head.start(users="mail")
    head.happens(*(event for n in jobs for event in job_ends(n, "refused", jobs[n][0])))
    until(lambda: server.letters, 120)
    assert server.tried.index(BOB) <= 1, server.tried


def test_an_address_of_another_user_has_separate_turns(head: Head, server: MailServer) -> None:
    """The attacker names the other user's address, more often than an hour allows."""
    jobs = dict.fromkeys(range(1, 5), ("mallory", BOB))
    jobs[9] = ("bob", BOB)
    serve_jobs(head, jobs)
    head.sinks.clear()
    head.sink("mail", server.url)
    head.start(users="mail", per_hour=2)
    for n in jobs:
        head.happens(*job_ends(n, "refused", jobs[n][0]))
        time.sleep(0.2)
    until(lambda: any("job gave up: 9" in text for _, text in server.letters), 120)


@pytest.mark.parametrize(
    "address",
    [
        "-X/tmp/evil", "-oQ/tmp", "a@x.org,b@x.org", "a@x.org\nBcc: all@x.org", "a b", "|sh",
        "a@x.org?to=all@x.org", "/tmp/box", "a" * 300, "\u202eevil@x.org", "a@-x.org", "<a@x.org>",
    ],
)  # fmt: skip
def test_what_is_no_address_gets_no_mail(address: str) -> None:
    assert sinks.parse_mail_address(address) == ""


def test_an_owner_s_notices_fill_neither_the_outbox_nor_an_hour_of_another() -> None:
    now = datetime.now(UTC)

    def post(number: int, owner: str, to: str) -> OutboxEntry:
        notice = Notice("job_gave_up", str(number), f"j-{number}", now, "it ended", "hpctl status")
        return OutboxEntry("mail", to, notice, now, owner=owner)

    many = [post(n, "mallory", f"a{n}@evil.org") for n in range(10_000)]
    outbox = Outbox(0).add(1, [*many, post(10_001, "bob", BOB)], now)
    assert len(outbox.posted) == MOST_OF_OWNER + 1 < MOST
    assert outbox.posted[-1].owner == "bob"
    sent = [replace(p, sent=now) for p in outbox.posted]
    assert find_owners_at_message_limit(sent, 30, now) == {"mallory"}
