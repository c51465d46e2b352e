"""A node's Reason in Slurm: whose drain it is."""

from __future__ import annotations

from hpctl.vocabulary.identity import RecoveryId

OWN_REASON_PREFIX = "hpctl:"


def format_hpctl_node_reason(recovery: RecoveryId, why: str) -> str:
    """Return the Slurm Reason that marks a node as ours: `hpctl:<recovery id> <short why>`."""
    return f"{OWN_REASON_PREFIX}{recovery} {why}".strip()


def parse_recovery_id_from_reason(reason: str) -> RecoveryId | None:
    """Return the recovery that a Reason names by its prefix, to which slurmctld appends; else
    None."""
    if not reason.startswith(OWN_REASON_PREFIX):
        return None
    return RecoveryId(reason[len(OWN_REASON_PREFIX) :].split(" ", 1)[0])
