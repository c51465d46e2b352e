"""Sends a supervisor's reports to the head node: the trouble, the action, and what it asks for.

Runs inside a job, as the job's owner, and must never harm it: `send_report` raises nothing, waits
for two seconds at most, and some more where several head nodes may settle who leads, and answers
None where none was reached. The daemon believes it by its MUNGE credential, whose uid must be the
job's owner in Slurm (or root), and the client checks the daemon's answer by its credential.

Where the head node is: $HPCTL_HEAD, else what this node's agent is started with: HPCTL_AGENT_HEAD
in /etc/hpctl/agent.env (another file: $HPCTL_AGENT_ENV), which users must be able to read. Which
munged is asked: $HPCTL_AGENT_MUNGE_SOCKET, the same name in that file, the socket that AuthInfo
names in $SLURM_CONF, or MUNGE's own default.
"""

import logging
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from hpctl.toolkit.bounds import make_printable, parse_count
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.wire import job_reports as job_wire
from hpctl.wire.heads import (
    HeadNodeAddress,
    format_refusal_response,
    is_retriable_status,
    post_request_to_leader,
)

log = logging.getLogger(__name__)

HEAD = "HPCTL_HEAD"
AGENT_HEAD = "HPCTL_AGENT_HEAD"
AGENT_ENV = "HPCTL_AGENT_ENV"
AGENT_ENV_FILE = Path("/etc/hpctl/agent.env")
MUNGE_SOCKET = "HPCTL_AGENT_MUNGE_SOCKET"
FAILOVER_S = 3.0
"""How much longer than one head node several are asked: who leads may be open for a moment."""
WHOLE_FAILOVER_S = 12.0
"""The same for what is better late than never: as long as a fail-over takes."""
_MAX_FILE = 256 * 1024
_AUTH_INFO = re.compile(r"^\s*AuthInfo\s*=.*?\bsocket=([^\s,;]+)", re.IGNORECASE | re.MULTILINE)


class JobReportReply(Struct, frozen=True):
    """What the head node answered.

    `ok`: the report is written down. `acts`: the daemon may act on this job; where not (it only
    observes, is paused, or keeps out of the partition; `text` says which), it does not do
    what the report asks for. `again`: not taken now, the same report may be taken later.
    `run_policy`: the recovery policies of the cluster and the partition, as JSON. `former`: why the
    job's run before this one ended, where the daemon knows.
    """

    ok: bool
    acts: bool = False
    again: bool = False
    text: str = ""
    run_policy: Sequence[Mapping[str, object]] = ()
    former: str = ""


def send_job_report(
    report: JobReport,
    *,
    head: str | None = None,
    timeout_s: float = 2.0,
    failover_s: float = FAILOVER_S,
) -> JobReportReply | None:
    """Send one report to the head node that leads. Never raises.

    `head` (`http://HOST:PORT`) overrides what is configured. None where no head node is known or
    none was reached within `timeout_s` seconds, and `failover_s` more where several are known.
    """
    begun = time.monotonic()
    try:
        known = read_head_settings(os.environ)
        heads = [
            at for url in ((head,) if head else known.heads) if (at := _parse_head_address(url))
        ]
        if not heads:
            log.info("no head node is known: set %s", HEAD)
            return None
        until = begun + timeout_s + (failover_s if len(heads) > 1 else 0.0)
        body = job_wire.encode_job_report(report)
        return _parse_job_report_reply(
            *post_request_to_leader(heads, job_wire.PATH, body, until, known.munge_socket)
        )
    except Exception as error:  # noqa: BLE001 -- a job must not end because no daemon was reached
        log.info("no report was sent to the head node: %s", error or type(error).__name__)
    return None


def send_run_start_report(environment: Mapping[str, str], *, step: int | None, place: str) -> None:
    """Tell the step that a run resumes from, None for the beginning.

    By it the daemon knows of jobs without a supervisor whether they got on between two crashes. Of
    a run that is not the first, why the one before ended is written to stderr, the job's log, where
    the daemon knows. `place` says in words where this run begins, "" where only the program knows.
    As `_send_job_report_in_subprocess`.
    """

    def print_previous_run_end(reply: JobReportReply | None) -> None:
        if reply is not None and reply.former:
            restarts = read_restart_count(environment)
            line = f"hpctl: {describe_previous_run_end(restarts, reply.former, place)}"
            print(make_printable(line), file=sys.stderr, flush=True)

    if step is None and not read_restart_count(environment):
        return
    heard = print_previous_run_end if read_restart_count(environment) else None
    _send_job_report_in_subprocess(
        environment, lambda job, restarts: JobReport(job, restarts, progress=step), heard
    )


def read_restart_count(environment: Mapping[str, str]) -> int:
    """Return how often a job was started before this run."""
    return parse_count(environment.get("SLURM_RESTART_COUNT", ""))


def describe_previous_run_end(restarts: int, why: str, place: str) -> str:
    """Return why the former run ended, and where this one begins: `run 2: run 1 ended: ...`."""
    begins = f"; {place}" if place else ""
    return f"run {restarts + 1}: run {restarts} ended: {why}{begins}"


def send_job_run_note(why: str, environment: Mapping[str, str]) -> None:
    """Tell something about a run that its owner should read in `hpctl explain`.

    As `_send_job_report_in_subprocess`.
    """
    _send_job_report_in_subprocess(
        environment, lambda job, restarts: JobReport(job, restarts, why=why)
    )


def _send_job_report_in_subprocess(
    environment: Mapping[str, str],
    make_report: Callable[[JobId, int], JobReport],
    heard: Callable[[JobReportReply | None], None] | None = None,
) -> None:
    """Send a report in a separate process, so that a start waits for nothing.

    `heard` gets the answer there, and may write to stderr. Does nothing outside a job. Never
    raises.
    """
    job, restarts = environment.get("SLURM_JOB_ID", ""), environment.get("SLURM_RESTART_COUNT", "0")
    if not (job.isdecimal() and restarts.isdecimal()):
        return
    try:
        if os.fork():
            return
    except OSError as error:
        log.info("no report was sent to the head node: %s", error)
        return
    try:
        # A reader of our output waits until no process holds the other end.
        nothing = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1) if heard is not None else (0, 1, 2):
            os.dup2(nothing, stream)
        report = make_report(JobId(int(job)), int(restarts))
        reply = send_job_report(report, failover_s=WHOLE_FAILOVER_S)
        if heard is not None:
            heard(reply)
    finally:
        os._exit(0)


class HeadNodeConnectionSettings(Struct, frozen=True):
    """The head nodes to send to, and which munged to ask (None: MUNGE's default)."""

    heads: tuple[str, ...] = ()
    munge_socket: str | None = None


def read_head_settings(environment: Mapping[str, str]) -> HeadNodeConnectionSettings:
    """Return what environment and files say. What cannot be read says nothing."""
    agent = _read_environment_file(Path(environment.get(AGENT_ENV) or AGENT_ENV_FILE))
    heads = environment.get(HEAD) or environment.get(AGENT_HEAD) or agent.get(AGENT_HEAD, "")
    socket = environment.get(MUNGE_SOCKET) or agent.get(MUNGE_SOCKET)
    return HeadNodeConnectionSettings(
        tuple(re.split(r"[\s,]+", heads.strip())) if heads.strip() else (),
        socket or _find_munge_socket(environment.get("SLURM_CONF")),
    )


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE).decode("utf-8", "replace")
    except OSError:
        return ""


def _read_environment_file(path: Path) -> dict[str, str]:
    """Return the assignments of a systemd environment file, as far as a shell would read them
    too."""
    found: dict[str, str] = {}
    for line in _read_text(path).splitlines():
        name, is_pair, value = line.strip().partition("=")
        if not is_pair or name.startswith(("#", ";")):
            continue
        try:
            found[name.strip()] = " ".join(shlex.split(value))
        except ValueError:
            continue
    return found


def _find_munge_socket(conf: str | None) -> str | None:
    found = _AUTH_INFO.search(_read_text(Path(conf))) if conf else None
    return found[1] if found else None


def _parse_head_address(url: str) -> HeadNodeAddress | None:
    try:
        return HeadNodeAddress.parse(url)
    except HpctlError as error:
        log.info("no report is sent there: %s", error)
        return None


def _parse_job_report_reply(status: int, text: bytes) -> JobReportReply:
    if status == 200:
        taken = job_wire.decode_job_report_ack(text)
        return JobReportReply(
            True, taken.acts, text=taken.why, run_policy=taken.run_policy, former=taken.former
        )
    return JobReportReply(
        False, again=is_retriable_status(status), text=f"{status} {format_refusal_response(text)}"
    )
