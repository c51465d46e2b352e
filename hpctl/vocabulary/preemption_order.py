"""Which jobs Slurm lets preempt which others: by the tiers of their partitions, or by their QOS."""

from collections.abc import Mapping

from msgspec import Struct, field

from hpctl.vocabulary.slurm_facts import SlurmJob


class PreemptionOrder(Struct, frozen=True):
    """What slurm.conf's PreemptType goes by; empty where Slurm preempts nothing.

    `tiers`: the priority tier of each partition. `qos`: the names of the QOS that each QOS
    preempts.
    """

    tiers: Mapping[str, int] = field(default_factory=dict)
    qos: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def allows(self, by: SlurmJob, job: SlurmJob) -> bool:
        """Return whether one job may preempt another."""
        if self.tiers.get(by.partition, 0) > self.tiers.get(job.partition, 0):
            return True
        return job.qos in self.qos.get(by.qos, frozenset())
