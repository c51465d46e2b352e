"""When a wait is over: what `watch` asks of each look. Pure.

`patience_s` is how long only failed nodes may be missing, with nothing else moving, before a wait
gives up on them: with Continuous provisioning the service tries them again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from hpctl.clusters.progress import DELETED, RUNNING, Progress, Verdict

Judged = tuple[Verdict, str]
Until = Callable[[Progress], Judged]

LAG_S = 120.0
"""How long DescribeCluster may still show the counts from before an order that was taken."""

PATIENCE_S = 900.0

WAITING: Judged = (Verdict.WAITING, "")

_MENDS = {
    "drift detected": (
        "slurm.conf was edited by hand: slurm_config_strategy Merge keeps that, Overwrite undoes it"
    ),
    "mismatch detected": (
        "slurm.conf was edited by hand: slurm_config_strategy Merge keeps that, Overwrite undoes it"
    ),
    "provisioning_parameters.json": "remove that file below every group's source_s3_uri",
}
"""By words of FailureMessage (AWS's guide on API-driven Slurm configuration, troubleshooting)."""


def in_service(
    targets: Mapping[str, int] | None = None,
    patience_s: float = PATIENCE_S,
    leaving: Collection[str] = (),
    before: str | None = None,
) -> Until:
    """InService with every group at its target count, those in `targets` at what these say, and
    those that are `leaving` gone.

    FAILED where the cluster failed, was rolled back or is deleted. `before` is the FailureMessage
    from before the order, where somebody looked: another one tells of this order.
    """

    def judge(p: Progress) -> Judged:
        if p.status == "Failed":
            return Verdict.FAILED, p.failure or "the cluster is Failed"
        if p.seen == {DELETED} and p.waited_s < LAG_S:
            return WAITING  # it was created a moment ago
        if p.status in ("Deleting", DELETED):
            return Verdict.FAILED, f"the cluster is {p.status}"
        if p.status != "InService":
            # A Continuous cluster waits for a login node, however often that fails.
            return _stuck(p, patience_s) if p.status == "Creating" else WAITING
        if "RollingBack" in p.seen:
            return _rolled_back(p)
        if targets is not None and (missed := _missed(p.targets, targets)):
            if before is not None and p.failure not in ("", before):
                return _rolled_back(p)
            if p.waited_s < LAG_S:
                return WAITING
            return Verdict.FAILED, f"{missed}{': ' + p.failure if p.failure else ''}"
        if set(p.targets) & set(leaving):
            return WAITING
        if all(g.current >= g.target for g in p.groups) and all(
            n.status == RUNNING for n in p.nodes
        ):
            return Verdict.REACHED, ""
        return _stuck(p, patience_s)

    return judge


def migrated(judge: Until, before: str) -> Until:
    """`judge`, and every group has its SlurmConfig. FAILED where it is over without.

    `before` is the FailureMessage from before the order: another one tells of this order.
    """

    def both(p: Progress) -> Judged:
        verdict, why = judge(p)
        if verdict is not Verdict.REACHED or p.by_api:
            return verdict, why
        told = p.failure not in ("", before)
        over = told or "Updating" in p.seen or p.waited_s >= LAG_S
        return _rolled_back(p) if over else WAITING

    return both


def _rolled_back(p: Progress) -> Judged:
    mend = next((mend for word, mend in _MENDS.items() if word in p.failure), "")
    why = f"the service rolled the change back: {p.failure or 'it does not say why'}"
    return Verdict.FAILED, f"{why} ({mend})" if mend else why


def deleted(p: Progress) -> Judged:
    """The service does not know the cluster any more. FAILED where nobody deletes it."""
    if p.status == DELETED:
        return Verdict.REACHED, ""
    if p.status == "Failed":
        return Verdict.FAILED, p.failure or "the deletion failed"
    if "Deleting" not in p.seen and p.waited_s >= LAG_S:
        return Verdict.FAILED, "nobody has ordered its deletion: hpctl cluster delete"
    return WAITING


def _missed(have: Mapping[str, int], want: Mapping[str, int]) -> str:
    wrong = [
        f"{name} has a target of {have.get(name, 0)}, not {count}"
        for name, count in want.items()
        if have.get(name) != count
    ]
    return "; ".join(wrong)


def _stuck(p: Progress, patience_s: float) -> Judged:
    """Whether only nodes are missing that have failed: the service may try those for ever."""
    failed = {n.key for n in p.failures}
    moving = any(n.status != RUNNING and n.key not in failed for n in p.nodes)
    if not failed or moving or p.still_s < patience_s:
        return WAITING
    return (
        Verdict.FAILED,
        f"{len(failed)} node(s) did not come up, and nothing else has moved for {p.still_s:.0f} s",
    )
