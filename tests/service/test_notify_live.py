"""The real daemon tells people: an operator's sink of an escalation, a job's owner by MailProg."""

import json
from pathlib import Path

import pytest

from tests.daemon.chaos import cluster
from tests.live import Live, until
from tests.service.test_notify import Webhook

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
MAILER = '#!/bin/sh\necho "$@" >>{base}/mails\ncat >>{base}/mails\n'


def count_waiting(live: Live) -> dict[str, int]:
    """Return how many notices wait for each sink."""
    listed = json.loads(live.hpctl("notify", "list", "--json"))["sinks"]
    return {row["name"]: row["waiting"] for row in listed}


def test_an_escalation_and_a_resumed_job_are_reported(tmp_path: Path) -> None:
    hook = Webhook()
    url = tmp_path / "url"
    url.touch(0o600)
    url.write_text(hook.url)
    tmp_path.chmod(0o755)
    ask = {"xid-79": {"ladder": ["ask_human"]}}
    told = {"sinks": {"ops": str(url)}, "users": "mailprog"}
    conf = "MailProg={base}/mailer\n"
    with cluster(
        {"catalogue": ask, "notify": told}, {"mailer": MAILER}, nodes=2, slurm_conf=conf
    ) as live:
        job = live.start("sleep 600", "--mail-user=ann@x.org", "--mail-type=REQUEUE")
        node = str(live.job(job).nodes[0])
        live.xid(node)
        until(lambda: bool(hook.got), 60, "the sink has the escalation")
        assert hook.got[0]["title"].endswith(f"escalated: {node}")
        assert f"Next: hpctl explain {node}" in hook.got[0]["message"]
        box = Path(live.sandbox.state_dir).parent / "mails"
        resumed = f"job resumed: {job} ann@x.org"
        # The mailer writes the subject first, then the text.
        until(lambda: box.exists() and resumed in box.read_text(), 30, "the owner has a mail")
        until(lambda: "No action is needed." in box.read_text(), 30, "and its text")
        # The journal learns that a mail was sent only after the mailer has ended. A notice that is
        # not urgent waits a minute for the operator's sink; a loaded machine may use that up.
        until(lambda: count_waiting(live)["mailprog"] == 0, 30, "the mail counts as sent")
        assert count_waiting(live).keys() == {"ops", "mailprog"}
    hook.close()
