"""Everything that can be known of a cluster's file before it costs money."""

from hpctl.clusters.validate.model_facts import ServiceModel
from hpctl.clusters.validate.run import FAMILIES, validate, worst
from hpctl.clusters.validate.verdict import Check, Family, Finding, Level, Place, Verdict

__all__ = [
    "FAMILIES",
    "Check",
    "Family",
    "Finding",
    "Level",
    "Place",
    "ServiceModel",
    "Verdict",
    "validate",
    "worst",
]
