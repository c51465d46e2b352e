"""The helpers of a job, one a node: `python -m hpctl.checkpoints.fast.helpers start|serve`.

The preamble runs `start`, in the background of the batch script: it writes the
FastCheckpointSaveSpec and has srun run `serve` on each node.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from hpctl.checkpoints.fast import spec as specs
from hpctl.checkpoints.fast.lead import (
    LAST_FLUSH_S,
    FastSaveLeader,
    remove_shared_fast_save_records,
    remove_unfinished_flush,
    restore_fast_saves,
)
from hpctl.checkpoints.fast.node import NodeSaveStore
from hpctl.checkpoints.fast.peer import NoHelperListeningError, PeerError, PeerServer
from hpctl.checkpoints.fast.spec import ENVIRONMENT, FastCheckpointSaveSpec, read_fast_save_spec
from hpctl.checkpoints.fast.union import PeerConnections
from hpctl.checkpoints.search import CheckpointSearchResult
from hpctl.slurm.parse import parse_job_state_and_flags
from hpctl.slurm.read import SlurmCommandReader
from hpctl.slurm.run import SlurmCommandRunner
from hpctl.slurm.signals import SIGNALS
from hpctl.slurm.step_environment import make_step_environment
from hpctl.toolkit.bounds import make_printable, parse_count
from hpctl.toolkit.compat import SAFE_PATH, UTC
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.hostlist import expand_hostlist, fold_hostlist
from hpctl.vocabulary.fast_saves import FastCheckpointSaveOptions
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.slurm_facts import SlurmNode
from hpctl.wire.job_report_client import send_job_run_note

IGNORED = tuple(name for name in SIGNALS if name != "TERM")
"""They ask a job's programs for a save; Slurm sends them to all of its steps, this one too."""
AGAIN = f"""
trap '' {" ".join(IGNORED)}
for pause in 1 2 4 8 16 32 64; do
    begun=$(date +%s)
    "$@" && exit
    [ $(($(date +%s) - begun)) -lt 30 ] || exit
    sleep $pause
    scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING || exit
done
"""
"""Where a task cannot be launched, srun ends them all: a moment later it may work. A node that has
just come back may refuse for half a minute; this tries for two minutes."""


class FastSavesExceedMemoryError(HpctlError):
    """The saves would end the job for its memory: it does not start."""


READY_S = 60.0
"""How long a start waits for the helpers of all nodes. A node that has just come back may refuse
to launch one for half a minute."""
REFUSED_S = 10.0
"""How long the other helpers are waited for once one has refused."""
GONE_S = 10.0
"""After which, and then so often, Slurm is asked whether a node that does not answer has left."""


def start_fast_save_helpers(environ: Mapping[str, str]) -> str:
    """Write the spec, start the helpers and wait for them; the spec's path.

    Raises HpctlError and OSError where the fast saves are off: no helper runs then.
    """
    job, shared = environ.get("SLURM_JOB_ID", ""), environ.get("HPCTL_CHECKPOINT_DIR", "")
    hosts = tuple(NodeName(name) for name in expand_hostlist(environ.get("SLURM_JOB_NODELIST", "")))
    directory = environ.get("HPCTL_FAST_DIR", "")
    if not (job.isdecimal() and hosts and shared and directory):
        raise HpctlError(
            "cannot start fast saves: this job was not submitted with `hpctl sbatch --fast-dir`",
            "Submit the job again with `hpctl sbatch --fast-dir DIR --checkpoint-dir DIR`.",
        )
    options = msgspec.json.decode(environ.get("HPCTL_FAST_OPTIONS") or "{}", type=dict[str, object])
    saves = msgspec.convert({**options, "dir": directory}, FastCheckpointSaveOptions)
    if saves.memory and (limit := _read_memory_limit(environ)) and saves.size >= limit:
        raise FastSavesExceedMemoryError(
            f"the fast saves do not fit: {directory} is in memory, and {saves.size >> 20} MiB of "
            "saves would use all of the"
            f" job's {limit >> 20} MiB of memory on a node",
            "Submit the job again with a larger --mem or a smaller --fast-size.",
        )
    key = environ.get("SLURM_ARRAY_JOB_ID", "")
    key = f"{key}_{environ.get('SLURM_ARRAY_TASK_ID', '0')}" if key else job
    runner = SlurmCommandRunner()
    reader = SlurmCommandReader(runner, lambda: datetime.now(UTC))
    nodes, leaves = {}, {}
    with suppress(ServiceUnavailable):
        nodes = dict(reader.nodes(hosts))
        leaves = dict(reader.leaves())
    spec = FastCheckpointSaveSpec(
        job=key,
        secret=secrets.token_hex(32),
        saves=saves,
        shared=shared,
        hosts=tuple(map(str, hosts)),
        addresses=tuple((nodes[h].address if h in nodes else "") or str(h) for h in hosts),
        domains=tuple(leaves.get(h, "") for h in hosts),
        suspects=tuple(expand_hostlist(environ.get("HPCTL_SUSPECTS", ""))),
        id=job,
        restarts=parse_count(environ.get("SLURM_RESTART_COUNT", "")),
    )
    path = specs.find_spec_path(spec)
    specs.write_fast_save_spec(spec, path)
    remove_unfinished_flush(spec)
    launched = launch_fast_save_helpers_on_nodes(hosts, path, environ)
    obstacle = wait_for_fast_save_helpers(spec, find_hosts_without_job_ranks)
    if obstacle:
        _stop_helpers(spec, launched)
        raise HpctlError(obstacle)
    if environ.get("HPCTL_RESUME") == "scratch":
        restore_fast_saves(
            spec,
            CheckpointSearchResult(None),
            log_fast_save_message,
            find_hosts_without_job_ranks,
            scratch=True,
        )
    return str(path)


def _read_memory_limit(environ: Mapping[str, str]) -> int:
    """Bytes that Slurm gives the job on each node; 0 where it sets no limit."""
    whole = parse_count(environ.get("SLURM_MEM_PER_NODE", ""))
    cpus = parse_count(environ.get("SLURM_CPUS_ON_NODE", ""))
    return (whole or parse_count(environ.get("SLURM_MEM_PER_CPU", "")) * cpus) << 20


def wait_for_fast_save_helpers(
    spec: FastCheckpointSaveSpec,
    gone: Callable[[Sequence[str]], Sequence[str]],
    wait_s: float = READY_S,
) -> str:
    """Wait for the helpers of all nodes; why the fast saves cannot be used, "" where they can.

    `gone`: which of the nodes that do not answer run no rank of the job. Blocks for `wait_s`
    seconds at most, and the time of a last request.
    """
    deadline = time.monotonic() + wait_s
    ask_slurm_at = time.monotonic() + min(GONE_S, wait_s)
    waiting = list(spec.hosts)
    heard: dict[str, Mapping[str, Any]] = {}
    with closing(PeerConnections(spec, retry_s=0.0)) as peers:
        while waiting:
            heard |= peers.each("ready", waiting)
            waiting = [host for host in waiting if host not in heard]
            if _describe_helper_refusals(heard):
                # The others are about to start: they end quietly when asked.
                deadline = min(deadline, time.monotonic() + REFUSED_S)
            if waiting and time.monotonic() >= ask_slurm_at:
                ask_slurm_at = time.monotonic() + GONE_S
                lost = gone(waiting)
                waiting = [host for host in waiting if host not in lost]
            if waiting and time.monotonic() >= deadline:
                return (
                    _describe_helper_refusals(heard) or f"no helper answers on {', '.join(waiting)}"
                )
            time.sleep(0.1 if waiting else 0.0)
        # Where locks are of one node alone, who came first sees only now that it is not alone.
        return _describe_helper_refusals({**heard, **peers.each("ready")})


def _describe_helper_refusals(answers: Mapping[str, Mapping[str, Any]]) -> str:
    refused = [f"on {host}, {answer['off']}" for host, answer in answers.items() if answer["off"]]
    more = f" (and on {len(refused) - 1} more nodes)" if len(refused) > 1 else ""
    return f"{refused[0]}{more}" if refused else ""


def _stop_helpers(spec: FastCheckpointSaveSpec, launched: subprocess.Popen[bytes]) -> None:
    """End the helpers of a start without fast saves; what they hold stays for the next start."""
    with closing(PeerConnections(spec, retry_s=0.0)) as peers:
        heard = peers.each("bye", over=False)
    if len(heard) < len(spec.hosts):  # else they end by themselves, without srun's complaints
        with suppress(ProcessLookupError):
            os.killpg(launched.pid, signal.SIGTERM)


def launch_fast_save_helpers_on_nodes(
    hosts: Sequence[NodeName], path: Path, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Return a shell that starts a helper on each node, and again as long as the job runs."""
    count = str(len(hosts))
    # --no-kill: the loss of a node leaves the others' helpers. They take nothing from the ranks.
    command = [
        *("sh", "-c", AGAIN, "sh"),
        *("srun", "--overlap", "--no-kill", "--kill-on-bad-exit=0", "--quiet", "--mpi=none"),
        *(
            "--nodes",
            count,
            "--ntasks",
            count,
            "--ntasks-per-node=1",
            "--nodelist",
            fold_hostlist(hosts),
        ),
        *("--cpu-bind=none", "--gres=none", "--input=none", "--job-name=hpctl-fast"),
        *(sys.executable, *SAFE_PATH, "hpctl.checkpoints.fast.helpers", "serve"),
    ]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        env={
            **make_step_environment(environ, hosts, hosts),
            specs.ENVIRONMENT: str(path),
            specs.HELPER: "fast",
        },
        cwd="/",
        start_new_session=True,
    )


def find_hosts_without_job_ranks(hosts: Sequence[str]) -> Sequence[str]:
    """Return which of these nodes no longer run a rank of this job.

    Those are nodes that slurmctld calls DOWN or not responding, and nodes that it has taken out of
    the job: a node that is drained and set DOWN answers again as soon as its slurmd registers.
    """
    reader = SlurmCommandReader(SlurmCommandRunner(), lambda: datetime.now(UTC))
    number = os.environ.get("SLURM_JOB_ID", "")
    with suppress(ServiceUnavailable):
        nodes = reader.nodes(tuple(map(NodeName, hosts)))
        record = reader.job(JobId(int(number))) if number.isdecimal() else None
        have = record.job.nodes if record is not None else ()
        return [
            host for host in hosts if _is_node_unavailable_to_job(nodes.get(NodeName(host)), have)
        ]
    return ()


def _is_node_unavailable_to_job(node: SlurmNode | None, have: Sequence[NodeName]) -> bool:
    """Return whether a node is away or, where the job's nodes are known, none of them."""
    if node is None or node.down or not node.responding:
        return True
    return bool(have) and node.name not in have


def load_fast_save_spec(environ: Mapping[str, str] = os.environ) -> FastCheckpointSaveSpec | None:
    """Return the job's Spec, None where it has no fast saves. Raises HpctlError."""
    path = environ.get(specs.ENVIRONMENT)
    return specs.read_fast_save_spec(Path(path)) if path else None


LOOK_S = 1.0
"""How often a helper looks at what lies on its own node; four times as often for QUICK_LOOKS after
a change, so that a save is copied soon after its end."""
QUICK_LOOKS = 12
BEAT_LOOKS = 20
"""After so many looks the leader asks all nodes, and each of them asks who leads: what happens
between saves costs next to nothing."""
ASK_S, SILENT_S = 5.0, 9.0
"""Of the time before the end that Slurm's answer may take."""
NICE = 19


def log_fast_save_message(text: str) -> None:
    """Into the job's log."""
    print(make_printable(f"hpctl: fast saves: {text}", lines=True), file=sys.stderr, flush=True)


class FastSaveHelper:
    """One node's part: it answers, copies, and leads where no helper before it lives."""

    def __init__(self, spec: FastCheckpointSaveSpec, host: str) -> None:
        self._spec, self._host = spec, host
        self.node = NodeSaveStore(spec, host)
        self._peers = PeerConnections(spec, self.node)
        self._lead = FastSaveLeader(self.node, self._peers, log_fast_save_message)
        if self.node.stranger:
            log_fast_save_message(
                f"{spec.saves.dir} of {host} held saves of {self.node.stranger}: moved away"
            )
        self._asked = False
        self._asked_at = 0.0
        self._quick = 0
        self._beat_at = 0.0
        self._leads = False
        self._troubles: dict[str, float] = {}

    def run(self, *, asked: bool = False) -> None:
        """Until the job ends, and the last flush. `asked`: SIGTERM has come already."""
        signal.signal(signal.SIGTERM, self._record_termination_signal)
        if asked:
            self._record_termination_signal()
        server = PeerServer(self._spec, self._host, self.node.handle)
        threading.Thread(target=self._copy_partner_steps_until_stopped, daemon=True).start()
        while not self._has_job_ended():
            self._run_leader_iteration()
        if not self.node.released.is_set():
            self._flush_newest_saves_at_job_end()
        elif self.node.over:
            self.node.remove()
        server.close()
        self._peers.close()

    def _record_termination_signal(self, *_: object) -> None:
        # No Event: a handler that meets its own thread within one waits for itself.
        self._asked_at, self._asked = time.monotonic(), True

    def _has_job_ended(self) -> bool:
        """Return whether the job ends. SIGTERM may also be its signal to save, and it runs on: the
        leader asks Slurm, one question for all nodes, and reports the end to the others."""
        if self.node.released.wait(LOOK_S / 4 if self._quick or self._asked else LOOK_S):
            return True
        if self._asked and self.leads():
            self._asked = False  # one that comes while Slurm answers is asked about again
            runs = is_job_running(self._spec)
            if runs is None and time.monotonic() < self._asked_at + SILENT_S:
                self._asked = True
                self._lead.request_flush()
                return False
            if runs is None:
                log_fast_save_message("slurmctld does not answer: the job is taken for ended")
            return not runs
        if time.monotonic() > self._asked_at + LAST_FLUSH_S + ASK_S + 5:
            self._asked = False
        return False

    def leads(self, what: str = "ping") -> bool:
        """Return whether no host before this one answers. The first that does hears `what`."""
        before = self._spec.hosts[: self._spec.hosts.index(self._host)]
        return not any(self._peers.each(what, [host], by=self._host) for host in before)

    def _run_leader_iteration(self) -> None:
        try:
            changed, beat, led = self.node.look(), time.monotonic() >= self._beat_at, self._leads
            if beat:
                self._beat_at = time.monotonic() + BEAT_LOOKS * LOOK_S
            self._quick = QUICK_LOOKS if self.node.changed else max(0, self._quick - 1)
            if beat or led or self.node.changed:  # who tells of a change takes this node to lead
                # Who led until now has judged what the one before it did not see.
                self._leads = self.leads("changed" if changed or led else "ping")
            if self._leads:
                self._lead.turn(everyone=beat or not led)
            else:
                self._forward_changes()
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._log_failure_once_per_minute(f"{self._host}: {error}")

    def _forward_changes(self) -> None:
        """Tell who leads of changes that were reported to this node: a host to which the leader was
        silent for a moment took this one for it, and reports a change once."""
        before = self._spec.hosts[: self._spec.hosts.index(self._host)]
        hosts = set[str]()
        while self.node.changed:
            hosts.add(self.node.changed.popleft())
        for host in sorted(hosts - {self._host}):
            if not any(self._peers.each("changed", [leader], by=host) for leader in before):
                self.node.changed.append(host)

    def _copy_partner_steps_until_stopped(self) -> None:
        while True:
            self.node.news.wait()
            self.node.news.clear()
            try:
                errors = self.node.copy_steps_of_partner_nodes()
            except (OSError, ValueError) as error:
                errors = [str(error)]
            for why in errors:
                self._log_failure_once_per_minute(f"no copy on {self._host} of {why}")

    def _flush_newest_saves_at_job_end(self) -> None:
        """The job ends: what is newest is flushed while all are still there."""
        begun = time.monotonic()
        self._peers.forget_unresponsive_hosts()  # a helper that was silent a moment ago may lead
        if self.leads():
            self.node.look()
            try:
                nothing_left = self._lead.end(LAST_FLUSH_S, find_hosts_without_job_ranks)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._log_failure_once_per_minute(f"the last flush failed: {error}")
                nothing_left = False
            over = (
                nothing_left
                and not self._spec.saves.keep
                and has_job_ended_without_requeue(self._spec)
            )
            self.release(over, begun + LAST_FLUSH_S + 4)
            if over:
                with suppress(OSError):
                    remove_shared_fast_save_records(self._spec)
        self.node.released.wait(max(0.0, begun + LAST_FLUSH_S + 5 - time.monotonic()))
        if self.node.over:
            self.node.remove()

    def release(self, over: bool, deadline: float) -> None:
        """Send `bye` to every host, and again to those that answered at the last look until each
        has answered, no longer runs a helper, or the deadline passes."""
        left = list(self._spec.hosts)
        while left:
            self._peers.forget_unresponsive_hosts()
            left = [host for host in left if not self._send_shutdown_request(host, over)]
            left = [host for host in left if host in self._lead.answering]
            if time.monotonic() > deadline:
                break
            time.sleep(0.2 if left else 0.0)

    def _send_shutdown_request(self, host: str, over: bool) -> bool:
        """Return whether it has heard that, or no helper is there that could."""
        try:
            self._peers.ask(host, "bye", over=over)
        except NoHelperListeningError:
            return True
        except OSError:
            return False
        return True

    def _log_failure_once_per_minute(self, text: str) -> None:
        """Say it, the same at most once a minute."""
        now = time.monotonic()
        if self._troubles.get(text, -60.0) <= now - 60:
            self._troubles = {t: at for t, at in self._troubles.items() if at > now - 60}
            self._troubles[text] = now
            log_fast_save_message(text)


def is_job_running(spec: FastCheckpointSaveSpec) -> bool | None:
    """Return whether Slurm shows this start of the job as running; None where it does not answer.

    It records an end before it signals the steps: a SIGTERM to a running job is a request to save.
    """
    fields = _query_job_record(spec)
    if fields is None:
        return None
    state, _ = parse_job_state_and_flags(fields.get("JobState", ""), "")
    return state in ("RUNNING", "SUSPENDED") and fields.get("Restarts") == str(spec.restarts)


def has_job_ended_without_requeue(spec: FastCheckpointSaveSpec) -> bool:
    """Return whether Slurm says that the job ended, or was cancelled, for good: it does not start
    again.

    While it completes, slurmctld 22.05 to 26.05 shows COMPLETING, whatever comes; a job that is
    requeued has no end and one restart more, and one that runs has the end of its time limit.
    """
    fields = _query_job_record(spec) or {}
    return (
        fields.get("JobState") in ("COMPLETING", "COMPLETED", "CANCELLED")
        and fields.get("Restarts") == str(spec.restarts)
        and fields.get("EndTime", "Unknown") != "Unknown"
        and fields.get("ExitCode") in ("0:0", "0:15")
        and fields.get("Reason") == "None"
    )


def _query_job_record(spec: FastCheckpointSaveSpec) -> dict[str, str] | None:
    """Slurm's record of the job, of an array's it may show all tasks; empty where it knows none,
    None where it does not answer."""
    ran = SlurmCommandRunner(timeout=ASK_S).run("scontrol", "--oneliner", "show", "job", spec.id)
    for line in ran.text.splitlines():
        fields = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if fields.get("JobId") == spec.id:
            return fields
    return {} if ran.ok or "Invalid job id" in ran.err else None


def supervise_helper(spec: FastCheckpointSaveSpec, host: str) -> None:
    """Until the job ends. A helper that is killed, for memory say, is started again.

    Never ends the job: what goes wrong costs the saves' safety alone. Raises what a FastSaveHelper
    does.
    """
    os.nice(NICE)
    for name in IGNORED:
        signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_IGN)
    asked, pause, child = False, 1.0, 0

    def forward_signal_to_helper_process(number: int, _: object) -> None:
        nonlocal asked
        asked = True
        with suppress(ProcessLookupError):
            if child:
                os.kill(child, number)

    signal.signal(signal.SIGTERM, forward_signal_to_helper_process)
    while True:
        child = os.fork()
        if child == 0:
            return _run_helper_process(spec, host, asked=asked)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            return None
        log_fast_save_message(
            f"the helper of {host} was ended by signal {os.WTERMSIG(status)}; it starts again"
        )
        time.sleep(pause)
        pause = min(60.0, 2 * pause)


def _run_helper_process(spec: FastCheckpointSaveSpec, host: str, *, asked: bool) -> None:
    """One process of a helper, until the job ends. A node that cannot take part answers why."""
    try:
        helper = FastSaveHelper(spec, host)
    except (HpctlError, OSError) as error:
        answer_helper_requests_with_refusal(spec, host, _format_os_error(error))
    else:
        helper.run(asked=asked)


def answer_helper_requests_with_refusal(spec: FastCheckpointSaveSpec, host: str, why: str) -> None:
    """Answer the start that this node takes no part, until it says `bye` or the job ends."""
    released, heard = threading.Event(), threading.Event()

    def answer_request_with_refusal(request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "bye":
            released.set()
            return {}
        if request["do"] != "ready":
            raise PeerError(why)
        heard.set()
        return {"off": why}

    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    server = PeerServer(spec, host, answer_request_with_refusal)
    released.wait(READY_S)
    if not heard.is_set():  # the start was over before: this helper has been started again
        log_fast_save_message(f"{host} no longer takes part: {why}")
    released.wait()
    server.close()


def _format_os_error(error: HpctlError | OSError) -> str:
    """Return an error in words, without its number."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return f"{error} {getattr(error, 'hint', '')}".strip()


def main() -> int:
    """Return the exit code is never the job's: 1 for a start that ends it. A helper that is off
    ends with 0, for it is not to be started again."""
    if sys.argv[1] == "start":
        return _run_helpers_start_command(os.environ)
    try:
        spec = read_fast_save_spec(Path(os.environ[ENVIRONMENT]))
        supervise_helper(spec, os.environ.get("SLURMD_NODENAME") or os.uname().nodename)
    except (HpctlError, OSError) as error:
        log_fast_save_message(f"off: {_format_os_error(error)}")
    return 0


def _run_helpers_start_command(environ: Mapping[str, str]) -> int:
    """Start, and print for the preamble the spec's path, `off` or `stop`."""
    try:
        print(make_printable(start_fast_save_helpers(environ)))
    except FastSavesExceedMemoryError as error:
        log_fast_save_message(f"{error} {error.hint}")
        print("stop")
        return 1
    except (HpctlError, OSError) as error:
        place = environ.get("HPCTL_CHECKPOINT_DIR", "")
        why = f"fast saves are off: {_format_os_error(error)}; the program saves to {place}"
        print(
            make_printable(f"hpctl: {why} (HPCTL_FAST_DIR is not set)"), file=sys.stderr, flush=True
        )
        print("off", flush=True)
        send_job_run_note(why, environ)
    return 0


if __name__ == "__main__":
    sys.exit(main())
