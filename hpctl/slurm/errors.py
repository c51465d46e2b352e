"""What Slurm's error texts mean for an order: the one table that turns them into Outcomes.

The texts are those of `slurm_errtab` (src/common/slurm_errno.c), which 22.05 to 26.05 share but
for a few; the codes are Slurm's own names.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpctl.core.model import Outcome
from hpctl.slurm.run import End, Ran

UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class _Row:
    text: str
    code: str
    transient: bool = False


_NOT_SENT = (
    _Row("Unable to contact slurm controller (connect failure)", UNAVAILABLE, True),
    _Row("Unable to establish controller machine", UNAVAILABLE, True),
    _Row("Slurm backup controller in standby mode", "ESLURM_IN_STANDBY_MODE", True),
    _Row("Unable to process configuration file", "configuration", True),
    _Row("Protocol authentication error", "ESLURM_PROTOCOL_AUTHENTICATION", True),
)
_MAYBE_DONE = (
    _Row("Unable to contact slurm controller", UNAVAILABLE),
    _Row("Socket timed out on send/recv operation", "timeout"),
    _Row("Zero Bytes were transmitted or received", "connection_lost"),
    _Row("Transport endpoint is not connected", "connection_lost"),
    _Row("Connection reset by peer", "connection_lost"),
    _Row("Unexpected message received", "connection_lost"),
)
_REFUSED = (
    _Row("Invalid job id specified", "ESLURM_INVALID_JOB_ID"),
    _Row("Invalid node name specified", "ESLURM_INVALID_NODE_NAME"),
    _Row("Invalid node state specified", "ESLURM_INVALID_NODE_STATE"),
    _Row("Job is pending execution", "ESLURM_JOB_PENDING"),
    _Row("Job/step already completing or completed", "ESLURM_ALREADY_DONE"),
    _Row("Requested operation is presently disabled", "ESLURM_DISABLED"),
    _Row("Job cannot be requeued", "ESLURM_DISABLED"),
    _Row("Requested operation not supported for this job", "ESLURM_BATCH_ONLY"),
    _Row("Only batch jobs are accepted or processed", "ESLURM_BATCH_ONLY"),
    _Row("Access/permission denied", "ESLURM_ACCESS_DENIED"),
    _Row("User does not have permission", "ESLURM_ACCESS_DENIED"),
    _Row("Job is no longer pending execution", "ESLURM_JOB_NOT_PENDING"),
    _Row("Job is not pending nor running", "ESLURM_JOB_NOT_PENDING_NOR_RUNNING"),
    _Row("Requested nodes are busy", "ESLURM_NODES_BUSY", True),
    _Row("Requested reservation overlaps", "ESLURM_RESERVATION_OVERLAP", True),
    _Row("Duplicate reservation name", "ESLURM_RESERVATION_NAME_DUP", True),
    _Row("Requested reservation is invalid", "ESLURM_RESERVATION_INVALID"),
    _Row("Job is in transitional state, retry", "ESLURM_TRANSITION_STATE_NO_UPDATE", True),
    _Row("Requested operation is not supported", "ESLURM_NOT_SUPPORTED"),
    _Row("Unspecified error", "SLURM_ERROR"),
)


def outcome(ran: Ran) -> Outcome:
    """What a mutating command's end says of its order.

    Exit status 0 is Accepted. A command that could not be started or could not connect did
    nothing: Rejected, transient. One that had to be killed, or lost the controller after
    connecting, is Ambiguous. Any other error text is slurmctld's refusal.
    """
    if ran.ok:
        return Outcome.accepted()
    if ran.end is End.NOT_STARTED:
        return Outcome.rejected("not_started", ran.said, transient=True)
    if ran.end is not End.EXITED:
        return Outcome.ambiguous("timeout", ran.said)
    if ran.code < 0:
        return Outcome.ambiguous("killed", f"{ran.command[0]} ended by signal {-ran.code}")
    if not ran.err.strip():
        return Outcome.ambiguous("exit_status", ran.said)
    return of_text(ran.said)


def of_text(said: str) -> Outcome:
    """What slurmctld's or libslurm's error text says of the order that it answers."""
    for row in _NOT_SENT:
        if row.text in said:
            return Outcome.rejected(row.code, said, transient=True)
    for row in _MAYBE_DONE:
        if row.text in said:
            return Outcome.ambiguous(row.code, said)
    for row in _REFUSED:
        if row.text in said:
            return Outcome.rejected(row.code, said, transient=row.transient)
    return Outcome.rejected("SLURM_ERROR", said)
