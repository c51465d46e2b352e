"""Reading Slurm through its commands: retried, bounded, and in one shape for every release."""

import pwd
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import TypeVar

from msgspec.structs import replace

from hpctl.slurm import parse
from hpctl.slurm.records import (
    DEFAULT_DEALT,
    ConsumableResources,
    HostlistCache,
    SlurmJobRecord,
    group_het_job_components,
    merge_het_job_components,
    merge_heterogeneous_jobs,
    parse_consumable_resources,
)
from hpctl.slurm.run import CommandEndKind, CommandResult, SlurmCommandRunner
from hpctl.toolkit.bounds import parse_count, parse_slurm_time
from hpctl.toolkit.compat import UTC
from hpctl.toolkit.errors import ReadInterrupted, ServiceUnavailable
from hpctl.toolkit.hostlist import (
    HostlistError,
    expand_hostlist,
    fold_hostlist,
    split_names_into_batches,
)
from hpctl.toolkit.threads import start_thread_pool
from hpctl.vocabulary.identity import JobId, NodeName
from hpctl.vocabulary.isolation import ItemProcessingFailure
from hpctl.vocabulary.preemption_order import PreemptionOrder
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob, SlurmNode

T = TypeVar("T")
EXPEDITED_SINCE = (25, 11)
TRIES = 3
RETRY_WITHIN = 5.0
"""Seconds after which a read is not tried again: scontrol has then retried for itself."""
LOOK = 200
"""Nodes in one `show node`: an argument list stays short, and a look stays cheap."""
GLANCES = 4
"""Nodes whose states are asked for one by one; more cost what all of them cost."""
JOBS_AT_ONCE = 500
"""Jobs that one squeue is asked for by their ids: an argument list stays short."""
ACCOUNTING_S = 3.0
"""How long slurmdbd may take to tell who canceled a job: a person waits for the answer."""
LOOK_ALONE = 16
"""Nodes without a partition that are asked for one by one, to see whether they are there."""


POLITE_EVERY, POLITE_S = 100, 0.0005
"""After so many nodes a reader lets go of the interpreter for a moment. Ten thousand nodes take a
few tenths of a second to parse, and a thread that never waits leaves the intake's hardly any time:
agents' heartbeats would wait for all of it. Costs a twentieth of a second there, nothing on small
clusters."""


@dataclass(eq=False)
class SlurmCommandReader:
    """Slurm's answers as values. Every method raises Unavailable, and nothing else."""

    runner: SlurmCommandRunner = field(default_factory=SlurmCommandRunner)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    event: Callable[[], bool] | None = None
    """Whether a daemon's loop has an event to handle: a long read is then given up. Other threads
    of a daemon must not wait while nodes are parsed."""
    _whole: bool = False
    """The last reading of all nodes was not given up, so that the next one may be."""
    may_act: Callable[[], bool] = lambda: True
    """Asked immediately before each order: a daemon that no longer leads sends none."""
    _version: tuple[int, int, int] | None = None
    _config: dict[str, str] | None = None
    _hosts: HostlistCache = field(default_factory=HostlistCache)
    _names: set[str] = field(default_factory=set)

    @cached_property
    def _job_read_thread_pool(self) -> ThreadPoolExecutor:
        return start_thread_pool(1, "slurm-jobs")

    @cached_property
    def _node_lookup_thread_pool(self) -> ThreadPoolExecutor:
        return start_thread_pool(GLANCES, "slurm-glance")

    def version(self) -> tuple[int, int, int]:
        """Return the release of the commands, asked once."""
        if self._version is None:
            self._version = parse.parse_slurm_version(self._read("--version").text)
        if self._version is None:
            raise ServiceUnavailable(
                "cannot read Slurm's version from the output of `scontrol --version`",
                "check that the program scontrol on PATH is Slurm's",
            )
        return self._version

    def dealt(self) -> ConsumableResources:
        """Return what slurmctld deals out of a node, asked until it was answered once: it is fixed
        while slurmctld runs. Unanswered: memory counts, of which nothing is lost but a shared
        node."""
        config = self._read_slurm_config_once()
        return parse_consumable_resources(config) if config else DEFAULT_DEALT

    def slurm_user(self) -> str:
        """Return the name of SlurmUser, asked until it was answered once; empty where it was
        not."""
        return parse.parse_slurm_user(self._read_slurm_config_once())

    def _read_slurm_config_once(self) -> dict[str, str]:
        """Return what slurmctld's configuration was when it first answered, for what is fixed in
        it."""
        if self._config is None:
            try:
                self._config = self.show_config()
            except ServiceUnavailable:
                return {}
        return self._config

    def show_config(self) -> dict[str, str]:
        """slurmctld's running configuration."""
        return parse.parse_scontrol_config(self._read("show", "config").text)

    def read_slurmctld_boot_time(self) -> datetime | None:
        """Return when slurmctld started, to the second below."""
        return parse_slurm_time(self.show_config().get("BOOT_TIME", ""))

    def text(self, *args: str) -> str:
        """Return what scontrol prints for these arguments."""
        return self._read(*args).text

    def view(self) -> SchedulerView:
        """Return all nodes and jobs. `as_of` is before the first question, never after."""
        give_up, self._whole = self.event if self._whole else None, False
        seen = self._read_nodes_and_jobs(lambda: self._read_all_nodes(give_up))
        self._whole = True
        return seen

    def part(
        self, nodes: Collection[NodeName], known: Mapping[NodeName, SlurmNode]
    ) -> SchedulerView:
        """Return all jobs, and these nodes; those of `known` as they were but for state and
        Reason."""

        def read_requested_nodes() -> tuple[dict[NodeName, SlurmNode], list[ItemProcessingFailure]]:
            if (
                known.keys() >= set(nodes)
                and (seen := self._read_nodes_with_sinfo(nodes, known)) is not None
            ):
                return seen, []
            found, flaws = self._read_nodes_in_batches(nodes)
            there = self._select_nodes_known_to_slurm(set(found))
            return {name: node for name, node in found.items() if name in there}, flaws

        return self._read_nodes_and_jobs(read_requested_nodes)

    def _read_nodes_and_jobs(
        self,
        read_nodes: Callable[[], tuple[dict[NodeName, SlurmNode], list[ItemProcessingFailure]]],
    ) -> SchedulerView:
        self.version()
        as_of = self.now()
        # Both pools are there after the first reading: no later one starts a thread.
        _ = self._node_lookup_thread_pool
        asked = self._job_read_thread_pool.submit(self._read_all_jobs)
        try:
            nodes, bad_nodes = read_nodes()
        finally:
            wait([asked])
        jobs, bad_jobs = asked.result()
        return SchedulerView(as_of, nodes, jobs, (*bad_nodes, *bad_jobs))

    def preemption_order(self) -> PreemptionOrder:
        """Return what Slurm lets preempt what; by QOS only slurmdbd knows. Raises Unavailable."""
        by = self.show_config().get("PreemptType")
        if by == "preempt/partition_prio":
            return PreemptionOrder(
                tiers=parse.parse_partition_priority_tiers(self.text("show", "partition", "-o"))
            )
        if by == "preempt/qos":
            return PreemptionOrder(
                qos=parse.parse_qos_preemption(self._read(*_QOS, program="sacctmgr").text)
            )
        return PreemptionOrder()

    def find_job_canceler(self, job: SlurmJob) -> str:
        """Return the account that canceled a job's last run, as slurmdbd has it.

        "" where slurmctld keeps no accounting there, where slurmdbd does not answer within
        ACCOUNTING_S, and where it does not have the end of the job yet. slurmctld itself tells
        no one: it keeps the account for accounting only (`requid` of its job record).
        """
        asked = (*_ENDS, "--jobs", job.shown)
        found = _CANCELED_BY.search(self.runner.run("sacct", *asked, timeout=ACCOUNTING_S).text)
        return _find_unix_account_name(parse_count(found["uid"])) if found is not None else ""

    def requeue_exit_codes(self) -> frozenset[int]:
        """Return the exit codes of slurm.conf's RequeueExit. Raises Unavailable."""
        return parse.parse_requeue_exit_codes(self.show_config().get("RequeueExit", ""))

    def leaves(self) -> dict[NodeName, str]:
        """Return the leaf switch or the block of each node; empty where no topology is
        configured."""
        hosts, found = HostlistCache(), dict[NodeName, str]()
        for leaf in _LEAF.finditer(self._read("show", "topology", known=lambda _: True).text):
            found |= dict.fromkeys(hosts(leaf["nodes"]), leaf["name"])
        return found

    def nodes(self, names: Sequence[str]) -> dict[NodeName, SlurmNode]:
        """Return those of these nodes that slurmctld knows, and whose records can be read."""
        found, _ = self._read_nodes_in_batches(names)
        return {name: found[name] for name in map(NodeName, names) if name in found}

    def _read_nodes_with_sinfo(
        self, names: Collection[NodeName], known: Mapping[NodeName, SlurmNode]
    ) -> dict[NodeName, SlurmNode] | None:
        """Read these nodes, their state and Reason again; None where that must be read another way.

        For one node sinfo has slurmctld send that one alone. `scontrol show node` has it send all,
        whatever is asked for: 80 ms for 10,000, against 12.
        """
        if not 0 < len(names) <= GLANCES:
            return None

        slurm_user = self.slurm_user()

        def read_node_with_sinfo(name: NodeName) -> SlurmNode | None:
            options = ("--noheader", "--all", "--local", "--Node", f"--Format={parse.GLANCE}")
            ran = self._read(*options, f"--nodes={name}", program="sinfo")
            return parse.parse_sinfo_node(ran.text, known[name], slurm_user)

        asked = [self._node_lookup_thread_pool.submit(read_node_with_sinfo, name) for name in names]
        wait(asked)
        answers = [each.result() for each in asked]
        seen = [node for node in answers if node is not None]
        return {node.name: node for node in seen} if len(seen) == len(names) else None

    def states(self, names: Sequence[NodeName]) -> dict[NodeName, SlurmNode]:
        """Return the nodes with their state and Reason only."""
        seen = self._read_nodes_with_sinfo(names, {name: SlurmNode(name, "") for name in names})
        return self.nodes(names) if seen is None else seen

    def _read_nodes_in_batches(
        self, names: Collection[str]
    ) -> tuple[dict[NodeName, SlurmNode], list[ItemProcessingFailure]]:
        found: dict[NodeName, SlurmNode] = {}
        flaws: list[ItemProcessingFailure] = []
        for batch in split_names_into_batches(sorted(set(names)), LOOK):
            self._look_at(batch, found, flaws)
        return found, flaws

    def _look_at(
        self,
        names: Sequence[str],
        found: dict[NodeName, SlurmNode],
        flaws: list[ItemProcessingFailure],
    ) -> None:
        """Read a few nodes. A name that comes twice was forged by who is root on one of them: the
        others are read without it, halving what is asked for, and it alone, when the first line is
        its own."""
        ran = self._read("show", "node", fold_hostlist(names), "-o", known=_is_node_not_found)
        nodes, bad = self._parse_scontrol_node_output(ran)
        asked = [node for node in nodes if node.name in names]
        if len(names) == 1 or len({node.name for node in asked}) == len(asked):
            found |= {node.name: node for node in reversed(asked)}
            flaws += bad
            return
        half = len(names) // 2
        self._look_at(names[:half], found, flaws)
        self._look_at(names[half:], found, flaws)

    def job(self, job: JobId) -> SlurmJobRecord | None:
        """Return one job, None where slurmctld says that it does not know the id.

        For the leader of a heterogeneous job slurmctld sends all of its components.
        """
        records = self._read_squeue_job_records(f"--jobs={job}", known=_is_invalid_job_id)[0]
        found = _find_job_record(records, job)
        if found is None:
            return None
        group = group_het_job_components(record.job for record in records).get(job)
        if group is not None:
            found = SlurmJobRecord(merge_het_job_components(group), group)
        return self._mark_admin_hold(self._add_expedited_requeue_flag(found))

    def find_jobs(self, ids: Collection[JobId]) -> dict[JobId, SlurmJob]:
        """Return those of these jobs that slurmctld knows, one entry for each task of an array.

        squeue joins the waiting tasks of an array only where it lists the record of the whole array
        as well (seen on 22.05), so that record is left out.
        """
        found: dict[JobId, SlurmJob] = {}
        for batch in split_names_into_batches([str(job) for job in sorted(ids)], JOBS_AT_ONCE):
            options = "--jobs=" + ",".join(batch)
            records, _ = self._read_squeue_job_records(options, known=_is_invalid_job_id)
            found |= {record.job.id: record.job for record in records}
        return merge_heterogeneous_jobs(found)

    def _add_expedited_requeue_flag(self, record: SlurmJobRecord) -> SlurmJobRecord:
        """Return a held job with EXPEDITED_REQUEUE among its flags, where it has that."""
        if "REQUEUE_HOLD" not in record.job.flags or self.version()[:2] < EXPEDITED_SINCE:
            return record
        ran = self._read("show", "job", record.command_id, "-o", known=_is_invalid_job_id)
        if not parse.is_expedited_requeue_record(ran.text):
            return record
        flags = record.job.flags | {"EXPEDITED_REQUEUE"}
        return replace(record, job=replace(record.job, flags=flags))

    def _mark_admin_hold(self, record: SlurmJobRecord) -> SlurmJobRecord:
        """Return a job whose launch failed, with the Reason JobHeldAdmin where an operator has held
        it since: slurmctld keeps its own description then, which all text shows in its place.

        Where squeue has no JSON it is taken to be as slurmctld left it.
        """
        if not record.job.has_launch_failed:
            return record
        ran = self.runner.run("squeue", "--json", f"--jobs={record.job.id}")
        held = ran.ok and parse.parse_squeue_json_reason(ran.out, record.job.id) == _HELD_BY_ADMIN
        return replace(record, job=replace(record.job, reason=_HELD_BY_ADMIN)) if held else record

    def _read_all_nodes(
        self, give_up: Callable[[], bool] | None
    ) -> tuple[dict[NodeName, SlurmNode], list[ItemProcessingFailure]]:
        nodes, flaws = self._parse_scontrol_node_output(
            self._read("show", "node", "-o", give_up=give_up), give_up
        )
        known = self._select_nodes_known_to_slurm({node.name for node in nodes})
        lines = Counter(node.name for node in nodes)
        found = {node.name: node for node in nodes if node.name in known}
        twice = [name for name in found if lines[name] > 1]
        again, bad = self._read_nodes_in_batches(twice)
        return {n: node for n, node in found.items() if lines[n] == 1} | again, [*flaws, *bad]

    def _read_all_jobs(self) -> tuple[dict[JobId, SlurmJob], list[ItemProcessingFailure]]:
        self._hosts.begin()
        records, flaws = self._read_squeue_job_records()
        return merge_heterogeneous_jobs({record.job.id: record.job for record in records}), flaws

    def _read_squeue_job_records(
        self, *options: str, known: Callable[[CommandResult], bool] | None = None
    ) -> tuple[list[SlurmJobRecord], list[ItemProcessingFailure]]:
        mark, fields = secrets.token_hex(8), parse.list_squeue_fields(self.version())

        def run_squeue(environ: Mapping[str, str]) -> bytes:
            ran = self._read(*parse.WORDS, *options, program="squeue", environ=environ, known=known)
            if parse.UNKNOWN in ran.err:
                raise ServiceUnavailable(
                    f"cannot list the jobs with squeue: {ran.err.strip()}",
                    "check Slurm's release: hpctl needs Slurm 22.05 or later",
                )
            return ran.out

        out = run_squeue(parse.make_squeue_format_environment(mark, fields))
        apart = "ExcNodes" not in fields and out.strip()
        lists = run_squeue(parse.make_squeue_exclusion_environment(mark)) if apart else b""
        try:
            return parse.parse_squeue_jobs(out, lists, mark, self._hosts, fields)
        except parse.IncompleteSqueueRecordError as error:
            raise ServiceUnavailable(
                f"cannot read squeue's list of jobs: {error}", "run `squeue` to see what it prints"
            ) from error

    def _select_nodes_known_to_slurm(self, found: set[NodeName]) -> set[NodeName]:
        """Return those that slurmctld has: a line may be forged for a node that does not exist.

        sinfo prints names alone, and is asked when there is a new one. As hostlists: with a line
        for each node it compares each with all others, which takes 20 s for 10,000.
        """
        if not found - self._names:
            return found
        listed = self._read("--noheader", "--all", "--local", "--format=%N", program="sinfo").text
        self._names.clear()
        try:
            self._names.update(chain.from_iterable(map(expand_hostlist, listed.split())))
        except HostlistError as error:
            raise ServiceUnavailable(
                f"cannot read sinfo's list of nodes: {error}", "run `sinfo` to see what it prints"
            ) from error
        strange = found - self._names
        if strange and len(strange) <= LOOK_ALONE:  # it has no partition, or is none
            ran = [self._read("show", "node", n, "-o", known=_is_node_not_found) for n in strange]
            self._names.update(n for n, r in zip(strange, ran, strict=True) if r.ok)
        return found & self._names

    def _parse_scontrol_node_output(
        self, ran: CommandResult, give_up: Callable[[], bool] | None = None
    ) -> tuple[list[SlurmNode], list[ItemProcessingFailure]]:
        lines = parse.split_scontrol_node_lines(ran.text)
        polite = _iterate_nodes_with_pauses(lines, give_up) if self.event else lines
        return parse.parse_scontrol_nodes(polite, self.dealt(), self.slurm_user())

    def _read(
        self,
        *args: str,
        known: Callable[[CommandResult], bool] | None = None,
        program: str = "scontrol",
        environ: Mapping[str, str] | None = None,
        give_up: Callable[[], bool] | None = None,
    ) -> CommandResult:
        """Run a command until it answers. `known` tells an answer that has exit status 1."""

        def has_answer(ran: CommandResult) -> bool:
            return ran.ok or (known is not None and ran.end is CommandEndKind.EXITED and known(ran))

        ran = self.runner.run(program, *args, environ=environ, give_up=give_up)
        if has_answer(ran):
            return ran
        if ran.end is CommandEndKind.GIVEN_UP:
            raise ReadInterrupted(f"{program}: {ran.message}")
        import tenacity  # 7 ms, which a command pays where something is tried again

        before = iter([ran])
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_attempt(TRIES) | tenacity.stop_after_delay(RETRY_WITHIN),
            wait=tenacity.wait_random(0.05, 0.4),
            retry=tenacity.retry_if_result(lambda ran: not has_answer(ran)),
            retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
        )
        ran = tries(lambda: next(before, None) or self.runner.run(program, *args, environ=environ))
        if ran is None or not has_answer(ran):
            message = ran.message if ran else "no answer"
            raise ServiceUnavailable(
                f"{program} {' '.join(args)}: {message}",
                "look at `scontrol ping` and slurmctld's log; is SLURM_CONF the right file?",
            )
        return ran


def _find_unix_account_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except (KeyError, OverflowError):
        return f"uid {uid}"


_HELD_BY_ADMIN = "JobHeldAdmin"
_QOS = ("--noheader", "--parsable2", "show", "qos", "format=Name,Preempt")
_ENDS = ("--noheader", "--parsable2", "--allocations", "--format=State")
_CANCELED_BY = re.compile(r"^CANCELLED by (?P<uid>[0-9]{1,10})$", re.MULTILINE)
_LEAF = re.compile(
    r"^(?:SwitchName|BlockName)=(?P<name>\S+) (?!Level=[1-9]).*?Nodes=(?P<nodes>\S+)", re.MULTILINE
)
"""A switch whose ports are nodes, or a block: whatever else there is lies above these."""


def _find_job_record(records: Iterable[SlurmJobRecord], job: JobId) -> SlurmJobRecord | None:
    return next((record for record in records if record.job.id == job), None)


def _is_node_not_found(ran: CommandResult) -> bool:
    return "not found" in ran.text + ran.err


def _is_invalid_job_id(ran: CommandResult) -> bool:
    return "Invalid job id" in ran.text + ran.err


def _iterate_nodes_with_pauses(
    nodes: Iterable[T], give_up: Callable[[], bool] | None
) -> Iterator[T]:
    """Yield the same, with pauses for the other threads. Raises Interrupted."""
    for number, node in enumerate(nodes, 1):
        yield node
        if number % POLITE_EVERY == 0:
            if give_up is not None and give_up():
                raise ReadInterrupted(
                    f"hpctl stopped reading Slurm's nodes after {number} nodes, for more urgent "
                    "work; it reads them again"
                )
            time.sleep(POLITE_S)
