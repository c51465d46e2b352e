"""Find the rank that the others waited for when a collective timed out.

The log of such an end shows who waited, and seldom who was waited for. Three witnesses know more,
in this order:

1. the flight recorder's dumps, which the ranks write before they end: numbers, operations and sizes
   of the collectives of each rank (`hpctl.jobs.hangs.flight_recorder`);
2. NCCL's RAS service: how many collectives each rank has launched, and who does not answer;
3. the ranks' stacks: who is elsewhere than in the collective.

The first that names a rank decides, and the others add what they know of it. Where none does, or
where the dumps show that all ranks came, it is the network's trouble. RAS and stacks can be asked
only while the ranks live: torch's watchdog reports the timeout 20 s and more before it ends its
process, so they are asked at that line. Of a step that makes no progress they are asked when that
shows.

The dumps are written where `jobs.run.flight` says, one file a rank, and are read as the user.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hpctl.jobs.crash import CALLS_DIFFER, NOT_COME
from hpctl.jobs.hangs.flight_files import (
    EARLY_S,
    diagnose_hang_from_dumps_in_subprocess,
    list_flight_recorder_dump_files,
)
from hpctl.jobs.hangs.flight_recorder import FlightRecorderHangCause, FlightRecorderHangVerdict
from hpctl.jobs.hangs.ras_judge import (
    LAST_LOOK_S,
    JobRankResolver,
    RasHangCause,
    RasHangFinding,
    RasReportSample,
    diagnose_hang_from_ras_samples,
    format_gpu_number,
)
from hpctl.jobs.hangs.ras_report import (
    RasAddress,
    RasJsonUnsupportedError,
    RasReport,
    query_ras_service,
)
from hpctl.jobs.hangs.stack_groups import StackHangVerdict, SuspectRank
from hpctl.jobs.run.progress import TrackedRankProgress
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.trouble import EVIDENCE_CHARS, HangPlace, Trouble, TroubleKind

TIMED_OUT: Final = "a collective timed out"
"""The signature of the watchdog's line, as in crash_patterns.yaml."""
WAIT_S: Final = 5.0
"""Seconds that the end of a step waits for witnesses that were asked while it ran."""
DUMPS_S: Final = 20.0
"""Seconds that all ranks have for a dump that they were asked for while they wait: the first one of
a rank imports torch's compiler, 1.2 s of a processor."""
DUMPS_LOOK_S: Final = 0.5
DUMPS_BEGIN_S, DUMPS_QUIET_S = 2.0, 5.0
"""Seconds until the first rank dumps, where any does, and from one rank's dump to the next."""
PIECE_CHARS: Final = 600


class CollectiveTimeoutEvidence(Struct, frozen=True):
    """What each witness says of one timeout; empty or None where it says nothing."""

    flight: FlightRecorderHangVerdict = FlightRecorderHangVerdict()
    ras: RasHangFinding | None = None
    stacks: StackHangVerdict | None = None
    no_ras: str = ""
    """Why the RAS service that answered cannot be read."""


def add_absent_rank_to_failure(
    trouble: Trouble, said: CollectiveTimeoutEvidence, names: JobRankResolver
) -> Trouble:
    """Return the trouble with whom the ranks waited for, where a witness names a rank.

    A rank that did not come is a HANG of that rank, whatever it did instead. Ranks that call
    different collectives are a CRASH: the program does that again. Else the trouble keeps its kind.
    """
    stopped = _find_rank_stopped_by_signal(said.stacks)
    if stopped is not None:
        # The kernel says so, and the dumps only show who waited.
        why = f"rank {stopped.rank} {stopped.why}"
        hang = _make_rank_hang_failure(trouble, why, stopped.rank)
        return _add_timeout_evidence_to_failure(
            _add_rank_location_to_failure(hang, said, names), said
        )
    if said.flight.cause is FlightRecorderHangCause.TOGETHER:
        return _add_timeout_evidence_to_failure(
            _explain_timeout_with_all_ranks_present(trouble, said, names), said
        )
    named = _apply_flight_dump_evidence(trouble, said, names)
    is_known = trouble.rank is not None or trouble.node is not None
    if named is None and trouble.kind is TroubleKind.HANG and is_known:
        named = trouble
    if named is None and said.ras is not None:
        named = _apply_ras_evidence(trouble, said.ras, names)
    if named is None and said.stacks is not None:
        named = _apply_stack_evidence(trouble, said, names) or _apply_dump_and_stack_evidence(
            trouble, said
        )
    if named is None:
        named = trouble
    return _add_timeout_evidence_to_failure(_add_rank_location_to_failure(named, said, names), said)


def _find_rank_stopped_by_signal(verdict: StackHangVerdict | None) -> SuspectRank | None:
    """Return the one rank that a signal has stopped; None where there is none, or several."""
    suspects = verdict.suspects if verdict is not None else ()
    stopped = [one for one in suspects if one.hang_place is HangPlace.STOPPED]
    return stopped[0] if len(stopped) == 1 else None


def _explain_timeout_with_all_ranks_present(
    trouble: Trouble, said: CollectiveTimeoutEvidence, names: JobRankResolver
) -> Trouble:
    """Return the trouble where the dumps show that all ranks came and the collective does not end.

    It is the network's. Counts and stacks name no rank then: a host runs ahead of its GPU, so ranks
    that wait in one collective have launched different numbers and are at different lines. What the
    log counts of one group does not see in which other group a rank waits.
    """
    if trouble.kind is TroubleKind.HANG:
        trouble = replace(trouble, kind=TroubleKind.NETWORK, why=TIMED_OUT, signature=TIMED_OUT)
    why = f"{trouble.why}: {said.flight.text}"
    trouble = replace(trouble, why=why, rank=None, node=None)
    if said.ras is None or said.ras.cause is not RasHangCause.FAILED:
        return trouble
    return _apply_ras_evidence(trouble, said.ras, names) or trouble


def _apply_flight_dump_evidence(
    trouble: Trouble, said: CollectiveTimeoutEvidence, names: JobRankResolver
) -> Trouble | None:
    flight = said.flight
    only = flight.ranks[0] if len(flight.ranks) == 1 else None
    if flight.cause is FlightRecorderHangCause.DIFFERENT:
        return replace(
            trouble,
            kind=TroubleKind.CRASH,
            why=flight.text,
            signature=CALLS_DIFFER,
            rank=only,
            node=None,
        )
    if flight.cause in (
        FlightRecorderHangCause.ABSENT,
        FlightRecorderHangCause.SILENT,
        FlightRecorderHangCause.LATE,
    ):
        node = (
            _find_common_node_of_ranks(trouble, flight.ranks, said, names) if only is None else None
        )
        silent = flight.cause is FlightRecorderHangCause.SILENT
        hang_place = HangPlace.SILENT if silent else HangPlace.UNKNOWN
        return replace(
            _make_rank_hang_failure(trouble, flight.text, only), node=node, hang_place=hang_place
        )
    return None


def _find_common_node_of_ranks(
    trouble: Trouble, ranks: Sequence[int], said: CollectiveTimeoutEvidence, names: JobRankResolver
) -> NodeName | None:
    """Return the node that several named ranks share; None where they are of several, or where it
    is not known.

    A trouble that names a node already keeps it where the places of the ranks are not known.
    """
    places: set[NodeName | None] = set()
    for number in ranks:
        rank, suspect = names.ranks.get(number), _find_suspect_rank(said.stacks, number)
        place = rank.node if rank else None
        if place is None and suspect is not None and suspect.node:
            place = NodeName(suspect.node)
        places.add(place)
    if places <= {None, trouble.node}:
        return trouble.node
    return places.pop() if len(places) == 1 else None


def _apply_ras_evidence(
    trouble: Trouble, finding: RasHangFinding, names: JobRankResolver
) -> Trouble | None:
    ranks = [names.rank(member, finding.communicator) for member in finding.members]
    only = ranks[0].rank if len(ranks) == 1 and ranks[0] is not None else None
    device = format_gpu_number(finding.members[0]) if len(finding.members) == 1 else ""
    trouble = replace(trouble, device=device or trouble.device)
    why = f"NCCL's RAS: {finding.why}"
    nodes = {
        names.node(member, rank) for member, rank in zip(finding.members, ranks, strict=True)
    } - {None}
    node = nodes.pop() if len(nodes) == 1 else None
    if finding.cause in (RasHangCause.BEHIND, RasHangCause.MISSING):
        return replace(_make_rank_hang_failure(trouble, why, only), node=node)
    if finding.cause is RasHangCause.DIVERGED:
        if trouble.kind is TroubleKind.HANG and not finding.sure:
            return None  # a program that may still move is not called wrong
        return replace(trouble, kind=TroubleKind.CRASH, why=why, signature=CALLS_DIFFER, rank=only)
    if finding.cause is RasHangCause.FAILED:
        # A rank's own error may be its network's: the kind stays, and the place is known.
        return replace(trouble, why=f"{trouble.why}; {why}", rank=only, node=node)
    return None


def _apply_stack_evidence(
    trouble: Trouble, said: CollectiveTimeoutEvidence, names: JobRankResolver
) -> Trouble | None:
    verdict = said.stacks
    if verdict is None or not verdict.suspects:
        return None
    if len(verdict.suspects) == 1:
        return _make_rank_hang_failure(trouble, verdict.text, verdict.suspects[0].rank)
    ranks = [suspect.rank for suspect in verdict.suspects]
    node = _find_common_node_of_ranks(trouble, ranks, said, names)
    places = {suspect.hang_place for suspect in verdict.suspects}
    hang_place = places.pop() if len(places) == 1 else HangPlace.UNKNOWN
    return replace(
        _make_rank_hang_failure(trouble, verdict.text, None), node=node, hang_place=hang_place
    )


def _apply_dump_and_stack_evidence(
    trouble: Trouble, said: CollectiveTimeoutEvidence
) -> Trouble | None:
    """Return the trouble of the one rank that does something else, where the dumps show that the
    others wait, or stand where one of those stands that do.

    A stack does not always show that its rank waits: `Work.wait()` has no frame of Python's.
    """
    waiting = set(said.flight.waiting)
    groups = said.stacks.groups if said.stacks is not None else ()
    others = [group for group in groups if not group.waits and waiting.isdisjoint(group.ranks)]
    if not waiting or len(others) != 1 or len(others[0].ranks) != 1:
        return None
    (rank,), place = others[0].ranks, others[0].place
    why = f"rank {rank} is in {place}, and others wait in a collective"
    return replace(_make_rank_hang_failure(trouble, why, rank), hang_place=others[0].hang_place)


def _make_rank_hang_failure(trouble: Trouble, why: str, rank: int | None) -> Trouble:
    return replace(
        trouble, kind=TroubleKind.HANG, why=why, signature=NOT_COME, rank=rank, node=None
    )


def _add_rank_location_to_failure(
    trouble: Trouble, said: CollectiveTimeoutEvidence, names: JobRankResolver
) -> Trouble:
    """Return the trouble with the node of its rank, and with what the stacks show of that rank."""
    if trouble.rank is None:
        return trouble
    suspect = _find_suspect_rank(said.stacks, trouble.rank)
    rank = names.ranks.get(trouble.rank)
    node = trouble.node or (rank.node if rank else None)
    if node is None and suspect is not None and suspect.node:
        node = NodeName(suspect.node)
    if node is None and said.ras is not None:
        node = _find_rank_node_in_ras_finding(said.ras, trouble.rank, names)
    why = trouble.why
    if suspect is not None and suspect.why and suspect.why not in why:
        why = f"{why}; it {suspect.why}"
    known = suspect is not None and suspect.hang_place is not HangPlace.UNKNOWN
    hang_place = suspect.hang_place if suspect is not None and known else trouble.hang_place
    return replace(trouble, why=why, node=node, hang_place=hang_place)


def _find_suspect_rank(verdict: StackHangVerdict | None, rank: int) -> SuspectRank | None:
    found = verdict.suspects if verdict else ()
    return next((one for one in found if one.rank == rank), None)


def _find_rank_node_in_ras_finding(
    finding: RasHangFinding, number: int, names: JobRankResolver
) -> NodeName | None:
    for member in finding.members:
        rank = names.rank(member, finding.communicator)
        if rank is not None and rank.rank == number:
            return names.node(member, rank)
    return None


def _add_timeout_evidence_to_failure(trouble: Trouble, said: CollectiveTimeoutEvidence) -> Trouble:
    pieces = [
        f"flight recorder ({said.flight.dumps} dumps): {said.flight.text}"
        if said.flight.dumps
        else "",
        f"NCCL's RAS: {said.ras.why}" if said.ras else said.no_ras,
        f"stacks: {said.stacks.text}" if said.stacks else "",
    ]
    kept = [piece[:PIECE_CHARS] for piece in pieces if piece]
    return replace(trouble, evidence="\n".join([*kept, trouble.evidence])[:EVIDENCE_CHARS])


class CollectiveTimeoutInvestigation:
    """The inquiry of the witnesses of one step's timeout. No method raises; `handle_rank_timeout`
    does not wait."""

    def __init__(
        self,
        ras: RasAddress,
        stacks: Callable[[Sequence[NodeName]], StackHangVerdict],
        *,
        flight: Callable[
            [str, float], FlightRecorderHangVerdict
        ] = diagnose_hang_from_dumps_in_subprocess,
        ask: Callable[[RasAddress, float], RasReport] = query_ras_service,
    ) -> None:
        """`stacks` reads the ranks' stacks on some nodes; it may raise HpctlError."""
        self._address, self._stacks, self._flight, self._ask = ras, stacks, flight, ask
        self.begin((), {}, "", 0)

    def begin(
        self, nodes: Sequence[NodeName], hosts: Mapping[str, NodeName], prefix: str, world: int
    ) -> None:
        """Begin a new step: what an older one's witnesses said is void.

        `hosts` maps addresses to the step's nodes, `prefix` is where the ranks dump, `world` how
        many ranks there are, 0 if unknown.
        """
        self._nodes, self._hosts, self._prefix, self._world = tuple(nodes), hosts, prefix, world
        self.renew()

    def renew(self) -> None:
        """Begin again for new ranks in the same step: what the witnesses said of the old ones is
        void."""
        self._began = time.time()
        self._threads: list[threading.Thread] = []
        self._heard: dict[str, object] = {}

    def handle_rank_timeout(self) -> None:
        """Handle a rank's report of a timeout while the ranks still live. May be called from any
        thread."""
        if self._threads or not self._nodes:
            return
        heard = self._heard
        self._threads = [
            threading.Thread(target=work, args=(heard,), name="timeout", daemon=True)
            for work in (self._query_nccl_ras_service, self._read_rank_stacks)
        ]
        for thread in self._threads:
            # RuntimeError at the user's limit of processes: the log is read on without witnesses.
            with contextlib.suppress(RuntimeError):
                thread.start()

    def gather(
        self, ranks: Mapping[int, TrackedRankProgress]
    ) -> tuple[CollectiveTimeoutEvidence, JobRankResolver]:
        """Return what the witnesses of a step that has ended say, and the names of its ranks.

        `ranks` are those that reported themselves. Takes a few seconds where dumps are to be read.
        """
        flight = self._read_flight_recorder_verdict(self._began)
        limit = time.monotonic() + WAIT_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, limit - time.monotonic()))
        stacks = self._heard.get("stacks")
        report = self._heard.get("ras")
        names = JobRankResolver(ranks, self._hosts, self._world or flight.world)
        said = CollectiveTimeoutEvidence(
            flight,
            diagnose_hang_from_ras_report(report, names) if isinstance(report, RasReport) else None,
            stacks if isinstance(stacks, StackHangVerdict) else None,
            str(report) if isinstance(report, RasJsonUnsupportedError) else "",
        )
        return said, names

    def look(
        self, ras: RasHangFinding | None, ranks: Mapping[int, TrackedRankProgress]
    ) -> tuple[CollectiveTimeoutEvidence, JobRankResolver]:
        """Return what the witnesses of a step say that makes no progress. `ras`: what NCCL's RAS
        service has shown.

        Reading the stacks asks ranks that have a debug pipe for a dump, so the dumps come after
        them. Takes up to a minute.
        """
        asked = time.time()
        try:
            stacks = self._stacks(self._nodes)
        except HpctlError as error:
            stacks = StackHangVerdict(str(error))
        read = sum(len(group.ranks) for group in stacks.groups)
        since = self._await_flight_recorder_dumps(max(self._world, read), asked)
        flight = self._read_flight_recorder_verdict(since)
        names = JobRankResolver(ranks, self._hosts, self._world or flight.world)
        return CollectiveTimeoutEvidence(flight, ras, stacks), names

    def _read_flight_recorder_verdict(self, since: float) -> FlightRecorderHangVerdict:
        return self._flight(self._prefix, since) if self._prefix else FlightRecorderHangVerdict()

    def _await_flight_recorder_dumps(self, world: int, asked: float) -> float:
        """Wait until all of so many ranks have dumped, where some have: one that is slow to dump is
        not a rank that cannot. Return since when dumps count (POSIX s).

        Dumps from before `asked` count only where no rank dumps now: a healthy run may have been
        asked for its dumps, too. Ends once DUMPS_QUIET_S have passed without another dump: a rank
        that is stopped never writes one.
        """
        begun = grew = time.monotonic()
        most = 0
        while most < world and time.monotonic() - begun < DUMPS_S:
            count = self._count_ranks_with_flight_dump(asked)
            if count > most:
                most, grew = count, time.monotonic()
                continue
            quiet_s = DUMPS_QUIET_S if most else DUMPS_BEGIN_S
            if time.monotonic() - grew >= quiet_s or not self._count_ranks_with_flight_dump(
                self._began
            ):
                break
            time.sleep(DUMPS_LOOK_S)
        return asked if most else self._began

    def _count_ranks_with_flight_dump(self, since: float) -> int:
        """Return how many ranks have dumped since then (POSIX s); 0 where that cannot be seen."""
        try:
            times = [path.stat().st_mtime for path in list_flight_recorder_dump_files(self._prefix)]
        except OSError:
            return 0
        return sum(at >= since - EARLY_S for at in times)

    def _query_nccl_ras_service(self, heard: dict[str, object]) -> None:
        try:
            heard["ras"] = self._ask(self._address, LAST_LOOK_S)
        except RasJsonUnsupportedError as error:
            heard["ras"] = error
        except HpctlError:
            return  # no NCCL, or one without the service

    def _read_rank_stacks(self, heard: dict[str, object]) -> None:
        try:
            heard["stacks"] = self._stacks(self._nodes)
        except HpctlError:
            return  # the step ended meanwhile, or its nodes cannot be asked


def diagnose_hang_from_ras_report(
    report: RasReport, names: JobRankResolver
) -> RasHangFinding | None:
    """Return what one answer shows. That nothing moves, the timeout itself has shown."""
    sample = RasReportSample(report, 0.0)
    finding = diagnose_hang_from_ras_samples(sample, sample, names.name)
    naming = finding.cause not in (RasHangCause.NOTHING, RasHangCause.EQUAL, RasHangCause.MOVING)
    return finding if naming and finding.members else None
