"""A cluster at work, and hostile nodes and jobs in it, through the real parse to the real cycle.

Real: the readers of squeue's and scontrol's text, the wire, the cloud's listing, the Comment and
its policy, assess, plan, advance, executor, loop, and the journal's codec. Ours: the commands,
which print what they are given and accept every order.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from hpctl.daemon.kinds import KINDS
from hpctl.engine.cloud_watch import CloudPoller
from hpctl.engine.config import Config
from hpctl.engine.execute import StepExecutor, StepExecutorPorts
from hpctl.engine.journal.events import Event, GateBlocked, JobReported
from hpctl.engine.journal.rows import decode_event, encode_event
from hpctl.engine.journal.state import EngineState, replay_events
from hpctl.engine.journaled_state import JournaledState
from hpctl.engine.live_config import LiveConfig
from hpctl.engine.loop import RecoveryLoop
from hpctl.engine.loop_port import RecoveryLoopAccess
from hpctl.engine.node_health import NodeHealthStore
from hpctl.engine.observe import ClusterObserver, ObserverSources
from hpctl.engine.request_intake import OperatorRequestHandler
from hpctl.faults.catalogue import build_fault_rules
from hpctl.sagemaker import provider
from hpctl.slurm.cli import CliScheduler
from hpctl.slurm.run import CommandEndKind, CommandResult, SlurmCommandRunner
from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.model import AgentReport, DeviceVerdict, Finding
from hpctl.vocabulary.policy import ConcurrentRecoveryBudgets, OperatingMode, RecoveryPolicy
from hpctl.wire import job_reports as job_wire
from hpctl.wire import reports as wire
from tests.fakes.journal import MemoryJournal
from tests.fakes.slurm_text import listed, node_text, row

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
NODE, JOB, UID = "n8", 9, 666
"""The first hostile node, job and user; those after it are the next numbers."""
OTHERS = 7
"""The nodes n1 to n7 are nobody's but the operator's."""
RULES = build_fault_rules()
POLICY = RecoveryPolicy(
    mode=OperatingMode.ASSIST,
    budgets=ConcurrentRecoveryBudgets(
        open_min=99, partition_min=99, per_hour=999, correlated_min=99
    ),
)
"""With room for all: a node that tells of its own fault is believed, and then one more is open."""
CYCLES = 3


class Words(Struct, frozen=True):
    """What the hostile ones say. Each is free in type and content where its writer is."""

    job: Mapping[str, str] = field(default_factory=dict)
    excluded: str = ""
    node: str = ""
    report: Mapping[str, Any] | None = None
    told: Mapping[str, Any] | None = None
    cloud: Mapping[str, Any] | None = None


Said = Sequence["Words | None"]
"""What each stranger says, by place. None: the node is there, the job and its words are not."""


def targets(strangers: int) -> set[str]:
    """The nodes, jobs and instances of so many strangers."""
    places = range(strangers)
    return {f"{k}{OTHERS + 1 + i}" for i in places for k in ("n", "i-")} | {
        str(JOB + i) for i in places
    }


class _Clock:
    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> datetime:
        return self.at

    def monotonic(self) -> float:
        return (self.at - NOW).total_seconds()


class _Commands(SlurmCommandRunner, frozen=True):
    """Slurm's commands on this cluster."""

    said: Said = ()

    def run(self, name, *args, timeout=None, environ=None, give_up=None):
        return CommandResult(
            (name, *args), CommandEndKind.EXITED, 0, self._out(name, args, environ or {}), "", 0.0
        )

    def _out(self, name: str, args: Sequence[str], environ: Mapping[str, str]) -> bytes:
        text = self.said
        if name == "sinfo":
            return "\n".join(f"n{i}" for i in _numbers(text)).encode()
        if name == "squeue":
            formats = environ.get("SQUEUE_FORMAT2") or environ["SQUEUE_FORMAT"]
            mark = formats.partition(";")[0].rpartition("m")[2]
            lone = next((a.partition("=")[2] for a in args if a.startswith("--jobs=")), "")
            return _squeue(mark, "SQUEUE_FORMAT2" in environ, lone, text)
        if args[0] == "--version":
            return b"slurm-wlm 22.05.8"
        if args[:2] == ("show", "node"):
            return _nodes(text).encode("utf-8", "replace")
        return b""


def _numbers(answer: Said) -> range:
    """Of all nodes."""
    return range(1, OTHERS + 1 + len(answer))


def _squeue(mark: str, fields: bool, lone: str, answer: Said) -> bytes:
    registered = 'hpctl:{"policy":{"backoff":{"first_s":30}}}'
    jobs: dict[str, Mapping[str, str]] = {
        "1": {"NodeList": "n[1-2]", "BatchHost": "n1"},
        "2": {"State": "FAILED", "NodeList": "n3", "exit_code": "256", "Comment": registered,
              "EndTime": "2026-11-21T11:59:59", "Reason": "NonZeroExitCode"},
        "3": {"NodeList": "n4", "BatchHost": "n4", "Comment": "hpctl:{}"},
        "4": {"State": "PENDING", "NodeList": "", "Reason": "Resources", "BatchHost": ""},
    }  # fmt: skip
    for i, args in enumerate(answer):
        if args is not None:
            node = f"n{OTHERS + 1 + i}"
            base = {"UserID": str(UID + i), "Partition": "other", "NodeList": node,
                    "BatchHost": node}  # fmt: skip
            jobs[str(JOB + i)] = {**base, **args.job}
    jobs = {i: fields for i, fields in jobs.items() if lone in ("", i)}
    if not fields:
        hostile = enumerate(answer, JOB)
        return listed(mark, **{f"j{i}": args.excluded for i, args in hostile if args})
    return b"".join(
        row(mark, **{"JobID": i, "Partition": "all", **fields}) for i, fields in jobs.items()
    )


def _nodes(answer: Said) -> str:
    texts = [node_text(f"n{i}") for i in range(1, OTHERS + 1)]
    texts[5] = node_text("n6", "IDLE+DRAIN", " Reason=somebody else [root@2026-11-21T11:00:00]")
    for i, args in enumerate(answer, OTHERS + 1):
        other = node_text(f"n{i}").replace("Partitions=all,dev", "Partitions=other")
        texts.append(other.replace("OS=Linux", f"OS={args.node}") if args else other)
    return "\n".join(texts) + "\n"


class Outcome(Struct):
    """What came of it: everything but the hostile ones' own, and what raised.

    `reached`: of the hostile ones, the jobs and nodes that were read from Slurm, the reports and
    job's words that the intake took, and what the journal has about them.
    """

    decisions: list[tuple[Any, ...]]
    flaws: list[ItemProcessingFailure]
    state: EngineState
    journal: list[Event]
    reached: Counter[str]


def play(*answer: Words | None) -> Outcome:
    """A few cycles with what these say."""
    clock, journal, parts = _Clock(), MemoryJournal(), list[JobReported]()
    commands = _Commands(said=answer)
    scheduler = CliScheduler(commands, now=clock.now)
    book = NodeHealthStore({}, journal, lambda: None, clock)
    book.accept(*_reports(_numbers(answer)))
    reached = Counter[str]()
    for place, text in enumerate(answer):
        if text is not None:
            _speak(place, text, book, parts, reached)
    journal.append(parts)
    provider = _Cloud(answer, clock)
    cloud = CloudPoller(provider, lambda: None, 30.0)
    live = LiveConfig(Config(kill_switch=Path("/nonexistent")))
    observer = ClusterObserver(ObserverSources(scheduler, cloud, book), live, clock)

    class Jobs:
        def news(self) -> list[JobReported]:
            new, parts[:] = list(parts), []
            return new

    memory = JournaledState(journal)
    executor = StepExecutor(StepExecutorPorts(scheduler, provider), memory, clock)
    requests = OperatorRequestHandler(
        journal, RecoveryLoopAccess(observer, memory, clock, lambda: None), live
    )
    loop = RecoveryLoop(memory, executor, observer, requests, clock, KINDS, Jobs())
    flaws: list[ItemProcessingFailure] = []
    for _ in range(CYCLES):
        cloud.read()
        assert not cloud.trouble, cloud.trouble
        loop.cycle(POLICY, RULES)
        flaws += loop.flaws
        clock.at += timedelta(seconds=1)
    events, hostile = list(journal.events()), targets(len(answer))
    decisions = _of_others(events, hostile)
    read = {*map(str, observer.slurm.jobs), *observer.slurm.nodes, *(f.target for f in flaws)}
    reached["jobs"] = sum(str(JOB + place) in read for place in range(len(answer)))
    reached["nodes"] = sum(f"n{OTHERS + 1 + place}" in read for place in range(len(answer)))
    reached["events"] = len(events) - len(decisions) - reached["told"]
    return Outcome(decisions, flaws, loop.state, events, reached)


def restarted(outcome: Outcome) -> EngineState:
    """The state that a daemon has which reads the journal back, byte for byte."""
    return replay_events(
        decode_event(n, *encode_event(event)) for n, event in enumerate(outcome.journal)
    )


@cache
def _reports(numbers: range) -> list[AgentReport]:
    found = []
    for i in numbers:
        bad = Finding("kernel.xid", DeviceVerdict.FAIL, NOW, NOW, "0000:3b:00", "79")
        findings = (bad,) if i in (1, 5) else ()
        name, boot = f"n{i}", f"b{i}"
        found.append(AgentReport(name, f"i-{i}", boot, 1, NOW, NOW, findings))
    return found


def _speak(place, args, book, lines, reached):
    """The report and the job's word, as the intake takes or refuses them."""
    number = OTHERS + 1 + place
    if args.report is not None:
        base = {"node": f"n{number}", "instance": f"i-{number}", "boot": f"b{number}", "seq": 2,
                "sent_at": NOW.isoformat(), "agent_start": NOW.isoformat()}  # fmt: skip
        body = json.dumps({"v": 1, "report": {**base, **args.report, "node": f"n{number}"}})
        with contextlib.suppress(wire.MalformedReportError):
            book.accept(wire.decode_agent_report(body.encode("utf-8", "replace")))
            reached["reports"] += 1
    if args.told is not None:
        body = json.dumps({"v": 1, "job_report": {"restarts": 2, **args.told, "job": JOB + place}})
        body = body.replace(f'"{NODE}"', f'"n{number}"')
        with contextlib.suppress(wire.MalformedReportError):
            report: JobReport = job_wire.decode_job_report(body.encode("utf-8", "replace"))
            lines.append(JobReported(NOW, report, UID + place))
            reached["told"] += 1


class _Cloud:
    """ListClusterNodes' summaries, read as the provider reads them."""

    def __init__(self, answer: Said, clock: _Clock) -> None:
        self._clock = clock
        theirs: list[Mapping[str, Any]] = [{}] * OTHERS + [
            args.cloud or {} if args else {} for args in answer
        ]
        self._said = [
            {**_summary(i), **their} for i, their in zip(_numbers(answer), theirs, strict=True)
        ]

    def view(self) -> CloudProviderView:
        found, flaws = provider.parse_instances(self._said, frozenset())
        return replace(
            CloudProviderView(self._clock.now(), present=True, instances={i.id: i for i in found}),
            flaws=tuple(flaws),
        )


def _summary(number: int) -> dict[str, Any]:
    return {
        "InstanceId": f"i-{number}",
        "InstanceGroupName": "workers",
        "PrivateDnsHostname": f"n{number}",
        "InstanceStatus": {"Status": "Running"},
        "LaunchTime": NOW,
    }


def _of_others(events: Sequence[Event], hostile: Container[str]) -> list[tuple[Any, ...]]:
    """Each event that is not about the hostile ones, by target in place of its id."""
    about: dict[str, str] = {}
    found = []
    for event in events:
        answer = {name: getattr(event, name) for name in event.__struct_fields__}
        if "generation" in answer and answer["generation"] is not None:
            about.setdefault(answer.get("recovery", ""), answer["generation"].node)
        if "attempt" in answer and hasattr(answer["attempt"], "job"):
            about.setdefault(answer["recovery"], str(answer["attempt"].job))
        if isinstance(event, JobReported):
            continue
        target = event.target if isinstance(event, GateBlocked) else answer.get("target", "")
        target = about.get(answer.get("recovery", ""), target)
        if target in hostile:
            continue
        answer = {k: about.get(v, v) if isinstance(v, str) else v for k, v in answer.items()}
        for own in ("recovery", "cause"):
            answer.pop(own, None)
        found.append((type(event).__name__, target, tuple(sorted(map(repr, answer.items())))))
    return found
