"""`hpctl stacks`: what each rank of a running job does now, and whom the others wait for."""

from __future__ import annotations

import re
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, ClassVar

import click
from msgspec import Struct

from hpctl.engine.completion import complete_job
from hpctl.jobs.hangs.stack_groups import StackGroup, SuspectRank, diagnose_hang_from_rank_stacks
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import (
    ItemTextLines,
    JsonOnly,
    Layout,
    RepeatedLayoutParts,
    TextLine,
)
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from hpctl.toolkit.hostlist import expand_hostlist
from hpctl.toolkit.job_ids import parse_job_id
from hpctl.toolkit.output import ExitCode
from hpctl.toolkit.tables import BAD, DIM, GOOD, HEAD, style_text
from hpctl.toolkit.view_copy import build_view_from_source

if TYPE_CHECKING:
    from rich.text import Text


class StacksView(Struct, frozen=True):
    """What `hpctl stacks` shows."""

    as_of: datetime
    job: int
    user: str
    nodes: tuple[str, ...]
    text: str
    suspects: tuple[SuspectRank, ...]
    groups: tuple[StackGroup, ...]
    missing: tuple[int, ...]
    silent: tuple[str, ...]
    errors: tuple[str, ...]
    idle: tuple[str, ...]
    ras: str
    flight: str
    flight_ranks: tuple[int, ...]

    layout: ClassVar[Layout] = (
        TextLine("{text}.", style=lambda view: BAD if view.suspects else HEAD),
        ItemTextLines("errors", "not read: {}", style=BAD),
        RepeatedLayoutParts(
            "ranks_by_stack",
            (TextLine("{title}", gap=True, style=HEAD), ItemTextLines("frames", indent=2)),
        ),
        TextLine("{flight}", title="Flight recorder", indent=2, style=DIM),
        TextLine("{ras}", title="NCCL's RAS service", indent=2, style=DIM),
    )
    json_only: ClassVar[JsonOnly] = (
        "job", "user", "nodes", "missing", "silent", "idle", "flight_ranks"
    )  # fmt: skip

    @property
    def ranks_by_stack(self) -> list[StackGroupView]:
        """Return each group of ranks as its title and the lines of its stack."""
        suspects = {one.rank for one in self.suspects}
        return [
            StackGroupView(
                _format_stack_group_title(one), _format_stack_group_frames(one, suspects)
            )
            for one in self.groups
        ]


class StackGroupView(Struct, frozen=True):
    """The text of a group of ranks that have the same stack."""

    title: str
    frames: list[Text]


def _format_stack_group_title(group: StackGroup) -> str:
    named = ", ".join(map(str, group.ranks[:16])) + (", ..." if len(group.ranks) > 16 else "")
    return f"{len(group.ranks)} of the ranks: {named}"


def _format_stack_group_frames(group: StackGroup, suspects: set[int]) -> list[Text]:
    style = BAD if suspects.intersection(group.ranks) else GOOD if group.waits else DIM
    return [style_text(frame, style if frame == group.place else DIM) for frame in group.frames]


class RunningJob(Struct, frozen=True):
    """A running job, as squeue reports it. `working`: nodes on which a step of it runs, None where
    it has no step or squeue does not say. `spares`: it keeps nodes idle on purpose."""

    id: int
    uid: int
    user: str
    nodes: tuple[str, ...]
    working: tuple[str, ...] | None = None
    spares: bool = False


@click.command(short_help="Show each rank's stack, and which ranks the others wait for.")
@click.argument("job", metavar="JOB", shell_complete=complete_job)
@output.json_option
def stacks(job: str, as_json: bool) -> None:
    """Read the stacks of a running job's Python ranks, and name those that the others wait for.

    For the job's owner and root. A step is added to the job, and each rank is stopped for a
    second or so. Dumps of torch's flight recorder that the ranks wrote in the last 10 minutes are
    read where this host sees them. Exit code: 0 no rank stands out, 1 ranks are named, 3 no stack
    could be read.
    """
    from hpctl.jobs.hangs.fresh_dumps import diagnose_hang_from_job_dumps
    from hpctl.jobs.hangs.stacks import collect_job_stacks

    found = find_running_job(job)
    output.echo(f"hpctl: asking {len(found.nodes)} nodes of job {found.id}", err=True)
    dumps = collect_job_stacks(found.id, found.nodes, uid=found.uid)
    verdict = diagnose_hang_from_rank_stacks(dumps, found.nodes, found.working, spares=found.spares)
    ras = next((one.ras for one in dumps if one.ras), "")
    flight = diagnose_hang_from_job_dumps(dumps, found.uid)
    view = build_view_from_source(
        StacksView,
        verdict,
        as_of=output.get_current_utc_time(),
        job=found.id,
        user=found.user,
        nodes=found.nodes,
        ras=ras,
        flight=flight.text if flight.dumps else "",
        flight_ranks=flight.ranks,
    )
    output.show_view("stacks", view, as_json)
    if not view.groups:
        output.exit_with_code(ExitCode.CANNOT_TELL)
    named = view.suspects or view.flight_ranks
    output.exit_with_code(ExitCode.PROBLEM if named else ExitCode.FINE)


def find_running_job(job: str) -> RunningJob:
    """Return the job of that id (of an array 12_3, a component 12+1). Raises HpctlError,
    Unavailable."""
    from hpctl.slurm.run import SlurmCommandRunner

    if parse_job_id(job) is None:
        raise HpctlError(
            f"{job!r} is not a Slurm job id", "`squeue -t RUNNING` lists the running jobs."
        )
    ran = SlurmCommandRunner().run(
        "squeue", "--noheader", f"--jobs={job}", "--states=all", "--format=%A %T %U %u %N"
    )
    if not ran.ok and "Invalid job id" not in ran.message:
        raise ServiceUnavailable(
            f"Slurm does not answer: {ran.message}",
            "Check `scontrol ping`, and run the command again.",
        )
    rows = [line.split() for line in ran.text.splitlines()] if ran.ok else []
    if len(rows) != 1 or len(rows[0]) != 5 or rows[0][1] != "RUNNING":
        state = rows[0][1] if len(rows) == 1 and len(rows[0]) > 1 else "not known to Slurm"
        hint = "Name one job that runs; `squeue -t RUNNING` lists them, array tasks as 12_3."
        raise HpctlError(f"job {job} is not running: its state is {state}", hint)
    number, _, uid, user, nodes = rows[0]
    return RunningJob(
        id=int(number),
        uid=int(uid),
        user=user,
        nodes=tuple(expand_hostlist(nodes)),
        working=_list_nodes_running_job_steps(number),
        spares=_has_job_registered_spare_nodes(number),
    )


def _has_job_registered_spare_nodes(job: str) -> bool:
    """Return whether the job is registered with spares. Its comment is the user's text and may have
    several lines, so it is read in a separate query."""
    from hpctl.slurm.run import SlurmCommandRunner
    from hpctl.vocabulary.registration import parse_registration_comment

    ran = SlurmCommandRunner().run("squeue", "--noheader", f"--jobs={job}", "--format=%k")
    registered = parse_registration_comment(ran.text.strip()) if ran.ok else None
    return registered is not None and registered.spares > 0


def _list_nodes_running_job_steps(job: str) -> tuple[str, ...] | None:
    """Return the nodes on which a step of the job runs; None where there is no step, as in a script
    that starts its ranks without srun, or where squeue does not say."""
    from hpctl.slurm.run import SlurmCommandRunner

    ran = SlurmCommandRunner().run(
        "squeue", "--steps", "--noheader", f"--jobs={job}", "--format=%i %N"
    )
    rows = [line.split() for line in ran.text.splitlines()] if ran.ok else []
    # Not the steps `batch`, `extern` and `interactive`, which run no ranks of their own.
    found = [row[1] for row in rows if len(row) == 2 and re.search(r"\.[0-9]+$", row[0])]
    return tuple(set(chain.from_iterable(map(expand_hostlist, found)))) or None
