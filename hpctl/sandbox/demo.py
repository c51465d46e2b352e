"""The demo: a GPU falls off the bus under a training job, and two clusters race to heal.

Nothing is simulated but the GPU: two real Slurm clusters, real training, a kernel-log line, and
on one of them the real daemon, which replaces the instance through the (emulated) cloud API. On
the other, plain Slurm gets the best that it can hope for: its node is set DOWN by hand at the
very instant of the fault, and Slurm requeues the job without hpctl.

hpctl's own journal is not asked: the figures are what an outsider sees in slurmctld.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct, field
from msgspec.structs import asdict

from hpctl.engine.adapters import make_slurm_command_client, open_journal_reader
from hpctl.engine.config import read_config_file
from hpctl.engine.timeline import RecoveryTimelineLine, make_journal_event_line
from hpctl.engine.world_offline import JournalReplayer
from hpctl.sandbox.api import Sandbox
from hpctl.sandbox.training.model import FINAL, find_last_finished_step, read_attempts
from hpctl.toolkit.compat import SAFE_PATH, UTC, parse_iso_time
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode

Test = Callable[[SchedulerView], bool]


class SlurmPoller:
    """Polls `scontrol` in a thread; marks the monotonic time at which each test first held."""

    def __init__(self, sandbox: Sandbox, interval_s: float = 0.05) -> None:
        """Nothing is read before the `with` block begins."""
        self._scheduler = make_slurm_command_client(read_config_file(sandbox.config_path))
        self._interval_s = interval_s
        self._tests: dict[str, Test] = {}
        self._marks: dict[str, float] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll_slurm, name="watch", daemon=True)
        self.view: SchedulerView | None = None

    def __enter__(self) -> SlurmPoller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def expect(self, name: str, test: Test) -> None:
        """Begin to look for something; a former mark of that name is forgotten."""
        with self._changed:
            self._marks.pop(name, None)
            self._tests[name] = test

    def get_first_time_test_passed(self, name: str) -> float | None:
        """Return when the test first held, on the monotonic clock."""
        with self._changed:
            return self._marks.get(name)

    def wait(self, name: str, timeout_s: float) -> float:
        """Wait until it holds; answers when that was. Raises Unavailable when it did not."""
        with self._changed:
            if not self._changed.wait_for(lambda: name in self._marks, timeout_s):
                raise ServiceUnavailable(
                    f"the demo stopped: it waited {timeout_s:g} s in vain for: {name}"
                )
            return self._marks[name]

    def job(self, job: int) -> SlurmJob | None:
        """Return a job as last seen."""
        return self.view.jobs.get(JobId(job)) if self.view else None

    def node(self, node: str) -> SlurmNode | None:
        """Return a node as last seen."""
        return self.view.nodes.get(NodeName(node)) if self.view else None

    def _poll_slurm(self) -> None:
        while not self._stop.is_set():
            try:
                view = self._scheduler.view()
            except ServiceUnavailable:
                self._stop.wait(self._interval_s)
                continue
            seen = time.monotonic()
            with self._changed:
                self.view = view
                held = [n for n, t in self._tests.items() if t(view)]
                for name in held:
                    self._marks[name] = seen
                    del self._tests[name]
                self._changed.notify_all()
            self._stop.wait(self._interval_s)


def make_job_running_test(job: int, restarts: int = 0) -> Test:
    """The job is RUNNING, in its given or a later attempt."""

    def is_job_running(view: SchedulerView) -> bool:
        known = view.jobs.get(JobId(job))
        return known is not None and known.state == "RUNNING" and known.restarts >= restarts

    return is_job_running


def make_node_state_test(node: str, fits: Callable[[SlurmNode], bool]) -> Test:
    """The node is there, and as wanted."""

    def has_matching_node(view: SchedulerView) -> bool:
        known = view.nodes.get(NodeName(node))
        return known is not None and fits(known)

    return has_matching_node


STEPS = 300
STEP_S = 0.1
CHECKPOINT_EVERY = 20
FAULT_AFTER_STEP = 50
RANKS_ON = 2
FLOOR_RUNS = 3

SITE = {
    # What this site has decided: a GPU that fell off the bus is replaced at first sight, not
    # rebooted. And patience fit for watching: a real cluster keeps the defaults.
    "catalogue": {"xid-79": {"ladder": ["replace"]}},
    "node": {"verify_healthy_s": 2.0, "remedy_after_s": 0.0},
    "job": {"prove_s": 5.0},
    "cluster": {"busy_poll_s": 0.5},
}

HMA_LATENCY_S = (0.1, 0.3)
"""Sooner than a real one, as everything here is: the mark comes while the node is treated."""

SLURM_CONF = "SchedulerParameters=batch_sched_delay=0\n"
"""The delay that hpctl advises, on both clusters: a startable job waits no 3 s for a look."""


class DemoScreen(Protocol):
    """Where the demo reports what happens (`hpctl.sandbox.command`)."""

    def chapter(self, title: str) -> None:
        """A new part begins."""

    def line(self, who: str, text: str, seconds: float | None) -> None:
        """One thing happened, `seconds` after the fault."""

    def progress(self, facts: dict[str, str]) -> None:
        """Show the current facts, by name."""


class DemoResult(Struct):
    """What the demo measured; the JSON file's fields. Seconds, as seen in slurmctld."""

    slurm_version: str = ""
    nodes: int = 0
    fault: str = ""
    fault_injected_at: str = ""
    fault_to_drained_s: float | None = None
    fault_to_job_running_s: float | None = None
    fault_to_first_step_s: float | None = None
    fault_to_node_returned_s: float | None = None
    plain_requeue_s: float | None = None
    floor_s: float | None = None
    speedup: float | None = None
    steps_lost: int | None = None
    weights_identical: bool = False
    weights_sha256: str = ""
    api_replace_calls: int = 0
    instance_before: str = ""
    instance_after: str = ""
    recoveries: list[dict[str, str]] = field(default_factory=list)
    timeline: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        """Return the JSON document, schema `hpctl.sandbox.demo/1`."""
        return {"schema": "hpctl.sandbox.demo/1", **asdict(self)}


class _RecoveryComparison(Struct, frozen=True):
    """One job on each cluster, and the node of ours that breaks under it."""

    healed: SlurmPoller
    plain: SlurmPoller
    mine: int
    theirs: int
    victim: str
    directory: Path
    """Where our job's training writes."""


class Demo:
    """One run of the demo, from two fresh sandboxes to their end."""

    def __init__(
        self, screen: DemoScreen, *, nodes: int = 8, xid: int = 79, hma: bool = False, **slurm: Any
    ) -> None:
        """`hma`: HyperPod's health agent marks the node too. `slurm`: the Spec's `prefix` and
        `adapter`. Raises HpctlError for too few nodes."""
        if nodes < RANKS_ON + 1:
            raise HpctlError(
                f"the demo needs a spare node: {nodes} nodes leave none for a job of "
                f"{RANKS_ON} nodes",
                f"Give --nodes {RANKS_ON + 1} or more.",
            )
        site = SITE if xid == 79 else {k: v for k, v in SITE.items() if k != "catalogue"}
        tag = f"{time.time_ns() // 1_000_000 % 100_000_000:x}"
        self._healed = Sandbox(
            f"demo-{tag}",
            nodes=nodes,
            mode="own",
            daemon=True,
            boot_time=3.0,
            config=site,
            slurm_conf=SLURM_CONF,
            hma=hma,
            hma_latency=HMA_LATENCY_S,
            **slurm,
        )
        plain: dict[str, Any] = {"agents": False, "slurm_conf": SLURM_CONF, **slurm}
        self._plain = Sandbox(f"plain-{tag}", nodes=nodes, **plain)
        self._screen = screen
        self._xid = xid
        self._fault = 0.0
        self._fault_at = datetime.now(UTC)
        self.result = DemoResult(nodes=nodes, fault=f"xid {xid}")

    def run(self) -> DemoResult:
        """Run it all; both sandboxes are gone afterwards, whatever happened."""
        say = self._screen
        say.chapter("Two Slurm clusters on this machine")
        with self._healed, self._plain:
            self.result.slurm_version = str(self._healed.status()["slurm_version"])
            say.line("both", f"Slurm {self.result.slurm_version}, every node idle", None)
            with SlurmPoller(self._healed) as healed, SlurmPoller(self._plain, 0.1) as plain:
                say.chapter("What an undisturbed run gives, and what the fastest restart takes")
                reference = self._compute_reference_weights(plain)
                self._measure_manual_restart(plain)
                say.chapter("Training, and then a GPU falls off the bus")
                self._run_recovery_comparison(healed, plain, reference)
        self._record_failed_demo_expectations()
        return self.result

    def _submit_job(self, sandbox: Sandbox, name: str, *, resumable: bool, step_s: float) -> int:
        directory = self._get_training_run_directory(sandbox, name)
        directory.mkdir(parents=True, exist_ok=True)
        script = directory / "train.sbatch"
        script.write_text(
            _make_training_job_script(sys.executable, directory, step_s), encoding="utf-8"
        )
        command = ["sbatch"] if not resumable else [sys.executable, *SAFE_PATH, "hpctl", "sbatch"]
        mine = ["--checkpoint-dir", str(directory)] if resumable else ["--requeue"]
        log = f"--output={directory}/job.log"
        done = sandbox.run([*command, *mine, "--parsable", log, str(script)], cwd=directory)
        return int(done.stdout.strip().split(";")[0])

    def _get_training_run_directory(self, sandbox: Sandbox, name: str) -> Path:
        return sandbox.state_dir / "runs" / name

    def _compute_reference_weights(self, plain: SlurmPoller) -> str:
        """Return the weights of an undisturbed run of the same program, as a job on the plain
        cluster."""
        job = self._submit_job(self._plain, "reference", resumable=False, step_s=0.0)

        def has_job_ended(view: SchedulerView) -> bool:
            known = view.jobs.get(JobId(job))
            if known is None or known.state == "PENDING":
                return False
            return not (known.running or known.completing)

        plain.expect("reference", has_job_ended)
        plain.wait("reference", 90)
        directory = self._get_training_run_directory(self._plain, "reference")
        sha = str(_read_final_training_result(directory).get("sha256", ""))
        if not sha:
            raise HpctlError(
                "the demo stopped: the training run without a fault did not finish: "
                f"{_read_end_of_job_log(directory)}"
            )
        self._screen.line("plain", f"undisturbed: {STEPS} steps, weights {sha[:16]}", None)
        return sha

    def _measure_manual_restart(self, plain: SlurmPoller) -> None:
        """scancel and a fresh sbatch of the same job: nothing that restarts can be faster."""
        taken = []
        job = self._submit_job(self._plain, "floor-0", resumable=False, step_s=STEP_S)
        for number in range(1, FLOOR_RUNS + 1):
            plain.expect("floor", make_job_running_test(job))
            plain.wait("floor", 30)
            begun = time.monotonic()
            self._plain.run(["scancel", str(job)])
            job = self._submit_job(self._plain, f"floor-{number}", resumable=False, step_s=STEP_S)
            plain.expect("again", make_job_running_test(job))
            taken.append(plain.wait("again", 60) - begun)
        self._plain.run(["scancel", str(job)])
        self.result.floor_s = round(sorted(taken)[len(taken) // 2], 3)
        self._screen.line("plain", f"scancel + sbatch to RUNNING: {self.result.floor_s} s", None)

    def _run_recovery_comparison(
        self, healed: SlurmPoller, plain: SlurmPoller, reference: str
    ) -> None:
        mine = self._submit_job(self._healed, "train", resumable=True, step_s=STEP_S)
        theirs = self._submit_job(self._plain, "train", resumable=False, step_s=STEP_S)
        for watch, job, who in ((healed, mine, "hpctl"), (plain, theirs, "plain")):
            watch.expect("running", make_job_running_test(job))
            watch.wait("running", 60)
            known = watch.job(job)
            on = ",".join(known.nodes) if known else "?"
            self._screen.line(who, f"job {job} trains on {on}", None)
        directory = self._get_training_run_directory(self._healed, "train")
        self._wait_for_step(directory, FAULT_AFTER_STEP)
        victim = self._inject_node_fault(healed, plain, mine, theirs)
        self._show_recovery_until_end(
            _RecoveryComparison(healed, plain, mine, theirs, victim, directory)
        )
        final = _read_final_training_result(directory)
        self.result.weights_sha256 = str(final.get("sha256", ""))
        self.result.weights_identical = bool(reference) and final.get("sha256") == reference
        lost = final.get("steps_lost") or []
        self.result.steps_lost = sum(lost) if final else None
        self._record_replace_calls(victim)

    def _wait_for_step(self, directory: Path, step: int) -> None:
        limit = time.monotonic() + 60
        while _read_last_training_step(directory) < step:
            if time.monotonic() > limit:
                raise HpctlError(
                    f"the demo stopped: the training did not reach step {step}: "
                    f"{_read_end_of_job_log(directory)}"
                )
            self._screen.progress(
                {"training": f"step {_read_last_training_step(directory)} of {STEPS}"}
            )
            time.sleep(0.1)

    def _inject_node_fault(
        self, healed: SlurmPoller, plain: SlurmPoller, mine: int, theirs: int
    ) -> str:
        job, other = healed.job(mine), plain.job(theirs)
        if job is None or other is None:
            raise HpctlError(
                "the demo stopped: the training job ended before the demo broke a node"
            )
        victim, twin = str(job.nodes[-1]), str(other.nodes[-1])
        self.result.instance_before = self._find_instance_id(victim)
        healed.expect("drained", make_node_state_test(victim, lambda n: n.drained))
        healed.expect("again", make_job_running_test(mine, job.restarts + 1))
        plain.expect("again", make_job_running_test(theirs, other.restarts + 1))
        self._fault_at, self._fault = datetime.now(UTC), time.monotonic()
        self._healed.inject(victim, "xid", code=self._xid)
        self._plain.scontrol("update", f"NodeName={twin}", "State=DOWN", "Reason=GPU lost")
        self.result.fault_injected_at = self._fault_at.isoformat()
        self._screen.line("hpctl", f"the kernel of {victim} logs Xid {self._xid}", 0.0)
        self._screen.line("plain", f"{twin} is set DOWN by hand at the same instant", 0.0)
        return victim

    def _find_instance_id(self, node: str) -> str:
        found = [n for n in self._healed.status()["nodes"] if n["node"] == node]
        return str(found[0].get("instance_id", "")) if found else ""

    def _show_recovery_until_end(self, race: _RecoveryComparison) -> None:
        """Tell what the daemon writes down as it happens, until everything has ended."""
        healed, plain = race.healed, race.plain
        story = _DemoJournalReader(self._healed, self._fault_at)
        noted: set[str] = set()
        limit = time.monotonic() + 170
        while time.monotonic() < limit:
            for line in story.news():
                seconds = (line.at - self._fault_at).total_seconds()
                self._screen.line("hpctl", line.text, seconds)
                self.result.timeline.append({"seconds": round(seconds, 3), "text": line.text})
            if "drained" not in noted and healed.get_first_time_test_passed("drained"):
                back = make_node_state_test(race.victim, lambda n: n.in_service and n.responding)
                healed.expect("returned", back)
            self._record_seconds_from_fault_to_mark(healed, "drained", "fault_to_drained_s", noted)
            self._record_seconds_from_fault_to_mark(
                healed, "again", "fault_to_job_running_s", noted
            )
            self._record_seconds_from_fault_to_mark(
                healed, "returned", "fault_to_node_returned_s", noted
            )
            if self._record_seconds_from_fault_to_mark(
                plain, "again", "plain_requeue_s", noted, key="plain"
            ):
                self._screen.line("plain", "the job runs again", self.result.plain_requeue_s)
                self._plain.run(["scancel", str(race.theirs)], check=False)
            self._screen.progress(self._describe_progress(race))
            if len(noted) == 4 and _read_final_training_result(race.directory) and not story.open:
                break
            time.sleep(0.1)
        self.result.recoveries = story.recoveries()
        self.result.fault_to_first_step_s = self._find_seconds_to_first_training_step(
            race.directory
        )

    def _record_seconds_from_fault_to_mark(
        self, watch: SlurmPoller, mark: str, name: str, noted: set[str], key: str = ""
    ) -> bool:
        seen = watch.get_first_time_test_passed(mark)
        if seen is None or (key or mark) in noted:
            return False
        noted.add(key or mark)
        setattr(self.result, name, round(seen - self._fault, 3))
        return True

    def _find_seconds_to_first_training_step(self, directory: Path) -> float | None:
        begun = [a for a in read_attempts(directory) if a.get("event") == "first_step"]
        if len(begun) < 2:
            return None
        at = parse_iso_time(str(begun[1]["at"]))
        return round((at - self._fault_at).total_seconds(), 3)

    def _describe_progress(self, race: _RecoveryComparison) -> dict[str, str]:
        node, job = race.healed.node(race.victim), race.healed.job(race.mine)
        other = race.plain.job(race.theirs)
        flags = "+".join(sorted(node.flags)) if node else ""
        return {
            "since the fault": f"{time.monotonic() - self._fault:.1f} s",
            "hpctl: node": f"{node.state}+{flags}".rstrip("+") if node else "?",
            "hpctl: job": f"{job.state} {job.reason}".strip() if job else "?",
            "hpctl: training": f"step {_read_last_training_step(race.directory)} of {STEPS}",
            "plain: job": f"{other.state} {other.reason}".strip() if other else "?",
        }

    def _record_replace_calls(self, victim: str) -> None:
        self.result.instance_after = self._find_instance_id(victim)
        replaced = self._healed.calls("BatchReplaceClusterNodes")
        self.result.api_replace_calls = len(replaced)

    def _record_failed_demo_expectations(self) -> None:
        """What did not really happen. Empty: it all did."""
        r = self.result
        if r.plain_requeue_s and r.fault_to_job_running_s:
            r.speedup = round(r.plain_requeue_s / r.fault_to_job_running_s, 1)
        ends = {e["id"][:1]: e["end"] for e in r.recoveries}
        checks: Sequence[tuple[bool, str]] = (
            (r.fault_to_drained_s is not None, "the faulty node was not drained"),
            (r.fault_to_job_running_s is not None, "the job did not run again"),
            (r.fault_to_node_returned_s is not None, "the node did not come back"),
            (r.plain_requeue_s is not None, "plain Slurm did not run its job again in time"),
            (r.weights_identical, "the weights differ from the undisturbed run's"),
            (r.api_replace_calls == 1, f"{r.api_replace_calls} replace calls, not 1"),
            (r.instance_after != r.instance_before, "the instance is still the old one"),
            (ends == {"n": "returned", "j": "resumed"}, f"recoveries ended as {ends}"),
        )
        r.problems = [text for fine, text in checks if not fine]


class _DemoJournalReader:
    """The daemon's journal, read as it grows."""

    def __init__(self, sandbox: Sandbox, since: datetime) -> None:
        self._store = open_journal_reader(read_config_file(sandbox.config_path))
        self._journal = JournalReplayer(None)
        self._since = since

    def news(self) -> list[RecoveryTimelineLine]:
        """Return the lines of the events since the last time."""
        news = self._journal.news(self._store)
        lines = [make_journal_event_line(event, self._journal.state) for _, event in news]
        return [line for line in lines if line is not None and line.at >= self._since]

    @property
    def open(self) -> bool:
        """Return whether a recovery is under way, or none has begun yet."""
        state = self._journal.state
        return bool(state.open_nodes or state.open_jobs) or not state.nodes

    def recoveries(self) -> list[dict[str, str]]:
        """Ids and ends."""
        nodes = [{"id": str(r.id), "end": str(r.phase)} for r in self._journal.state.nodes.values()]
        jobs = [{"id": str(r.id), "end": str(r.phase)} for r in self._journal.state.jobs.values()]
        return nodes + jobs


def _make_training_job_script(python: str, directory: Path, step_s: float) -> str:
    train = (
        f"srun --kill-on-bad-exit=1 {python} -m hpctl.sandbox.training"
        f" --checkpoint-dir {directory} --steps {STEPS} --step-s {step_s}"
        f" --checkpoint-every {CHECKPOINT_EVERY}"
    )
    return f"""#!/bin/sh
#SBATCH --job-name=train
#SBATCH --nodes={RANKS_ON}
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:8
#SBATCH --open-mode=append
exec {train}
"""


def _read_final_training_result(directory: Path) -> dict[str, Any]:
    try:
        document = json.loads((directory / FINAL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _read_end_of_job_log(directory: Path) -> str:
    """Return the end of a job's log, for the message of a demo that failed."""
    try:
        return (directory / "job.log").read_text(errors="replace")[-1500:]
    except OSError:
        return "it has no log"


def _read_last_training_step(directory: Path) -> int:
    starts = [a for a in read_attempts(directory) if a.get("event") == "start"]
    return find_last_finished_step(directory, str(starts[-1]["attempt"])) if starts else 0
