"""Which run policy each registered job has: the cluster's, its partition's and its own, merged."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from hpctl.vocabulary.identity import JobId
from hpctl.vocabulary.isolation import ItemProcessingFailure, process_items_capturing_failures
from hpctl.vocabulary.policy_file import (
    RunPolicyFile,
    merge_run_policy_files,
    parse_run_policy_json,
)
from hpctl.vocabulary.registration import EffectiveJobPolicy, parse_registration_comment
from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmJob

_KEPT: Final = 10_000
"""Merged policies remembered; jobs of one partition with the same Comment share one."""


class RunPolicyMerger:
    """Merges policies, each combination once. For the loop's thread."""

    def __init__(self, layers: Callable[[str], Sequence[RunPolicyFile]] = lambda _: ()) -> None:
        """`layers`: the cluster's policy and a partition's, as the configuration has them."""
        self._layers = layers
        self._known: dict[tuple[str, str], EffectiveJobPolicy] = {}

    def of(
        self, view: SchedulerView
    ) -> tuple[dict[JobId, EffectiveJobPolicy], list[ItemProcessingFailure]]:
        """Return the policy of every job that registered."""

        def find_policy_of_job(job: SlurmJob) -> tuple[JobId, EffectiveJobPolicy | None]:
            return job.id, self.find_job_policy(job)

        found, flaws = process_items_capturing_failures(
            "policy", view.jobs.values(), lambda job: job.id, find_policy_of_job
        )
        return {job: ruled for job, ruled in found if ruled is not None}, flaws

    def find_job_policy(self, job: SlurmJob) -> EffectiveJobPolicy | None:
        """Return one job's policy; None for a job that never registered. Never raises for a
        Comment."""
        key = (job.partition, job.comment)
        if key in self._known:
            return self._known[key]
        registered = parse_registration_comment(job.comment)
        if registered is None:
            return None
        if len(self._known) >= _KEPT:
            self._known.clear()
        ruled = self._known[key] = self._merge_policy_layers(job.partition, registered.policy)
        return ruled

    def _merge_policy_layers(self, partition: str, own: Mapping[str, object]) -> EffectiveJobPolicy:
        files = self._layers(partition)
        try:
            mine = parse_run_policy_json(own)
        except (ValueError, RecursionError) as error:
            reason = " ".join(str(error).split())[:200]
            return EffectiveJobPolicy(
                merge_run_policy_files(files), f"its own policy is not used: {reason}"
            )
        return EffectiveJobPolicy(merge_run_policy_files([*files, mine]))
