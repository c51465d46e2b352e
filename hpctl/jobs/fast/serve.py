"""The helper of one node: `python -m hpctl.jobs.fast serve`, started by srun on each of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress

from hpctl.core.bounds import printable
from hpctl.jobs.fast.lead import LAST_FLUSH_S, Lead
from hpctl.jobs.fast.node import Node
from hpctl.jobs.fast.peer import Server
from hpctl.jobs.fast.spec import Spec
from hpctl.jobs.fast.union import Peers
from hpctl.slurm.run import Runner

LOOK_S = 1.0
NICE = 19


def say(text: str) -> None:
    """Into the job's log."""
    print(printable(f"hpctl: fast saves: {text}", lines=True), file=sys.stderr, flush=True)


class Helper:
    """One node's part: it answers, copies, and leads where nobody before it lives."""

    def __init__(self, spec: Spec, host: str) -> None:
        self._spec, self._host = spec, host
        self._node = Node(spec, host)
        self._peers = Peers(spec, self._node)
        self._lead = Lead(self._node, self._peers, say)
        self._ending = threading.Event()
        self._troubles: dict[str, float] = {}

    def run(self) -> None:
        """Until SIGTERM, and the last flush."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._ending.set())
        server = Server(
            self._spec.secret, self._spec.job, self._spec.address(self._host), self._node.handle
        )
        threading.Thread(target=self._copy, daemon=True).start()
        while not self._ending.wait(LOOK_S):
            self._turn()
        self._end()
        server.close()
        self._peers.close()

    def leads(self) -> bool:
        """Whether no host before this one answers."""
        before = self._spec.hosts[: self._spec.hosts.index(self._host)]
        return not any(self._peers.each("ping", [host]) for host in before)

    def _turn(self) -> None:
        try:
            self._node.look()
            if self.leads():
                self._lead.turn()
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._trouble(f"{self._host}: {error}")

    def _copy(self) -> None:
        while True:
            self._node.news.wait()
            self._node.news.clear()
            try:
                errors = self._node.replicate()
            except (OSError, ValueError) as error:
                errors = [str(error)]
            for why in errors:
                self._trouble(f"no copy on {self._host} of {why}")

    def _end(self) -> None:
        """The job ends: what is newest is flushed while all are still there."""
        begun = time.monotonic()
        if self.leads():
            self._node.look()
            try:
                self._lead.turn()
                flushed = self._lead.flush(LAST_FLUSH_S)
            except (OSError, ValueError, KeyError, TypeError) as error:
                self._trouble(f"the last flush failed: {error}")
                flushed = False
            over = flushed and not self._spec.saves.keep and ended_for_good(self._spec)
            self._peers.each("bye", over=over)
        self._node.released.wait(max(0.0, begun + LAST_FLUSH_S + 5 - time.monotonic()))
        if self._node.over:
            self._node.remove()

    def _trouble(self, text: str) -> None:
        """Say it, the same at most once a minute."""
        now = time.monotonic()
        if self._troubles.get(text, -60.0) <= now - 60:
            self._troubles = {t: at for t, at in self._troubles.items() if at > now - 60}
            self._troubles[text] = now
            say(text)


def ended_for_good(spec: Spec) -> bool:
    """Whether Slurm says that the job ended by itself, or was cancelled, and does not start again.

    While it completes, slurmctld 22.05 to 26.05 shows COMPLETING, whatever comes; a job that is
    requeued has no end and one restart more.
    """
    said = Runner().run("scontrol", "--oneliner", "show", "job", spec.id).text
    told = dict(word.split("=", 1) for word in said.split() if "=" in word)
    return (
        told.get("Restarts") == str(spec.restarts)
        and told.get("EndTime", "Unknown") != "Unknown"
        and told.get("ExitCode") in ("0:0", "0:15")
        and told.get("Reason") == "None"
    )


def serve(spec: Spec, host: str) -> None:
    """Until the job ends. A helper that is killed, for memory say, is started again.

    Never ends the job: what goes wrong costs the saves' safety alone. Raises what a Helper does.
    """
    os.nice(NICE)
    ending, pause, child = False, 1.0, 0

    def end(number: int, _: object) -> None:
        nonlocal ending
        ending = True
        with suppress(ProcessLookupError):
            os.kill(child, number)

    while not ending:
        child = os.fork()
        if child == 0:
            return Helper(spec, host).run()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, end)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status) or ending:
            return None
        say(f"the helper of {host} was ended by signal {os.WTERMSIG(status)}; it starts again")
        time.sleep(pause)
        pause = min(60.0, 2 * pause)
    return None
