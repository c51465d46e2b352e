"""What the service's own model says of a request: the door to it, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hpctl.clusters.validate.verdict import Place


class ServiceModel(Protocol):
    """The service model that the installed AWS SDK carries. Nothing is asked of AWS."""

    def instance_types(self) -> frozenset[str]:
        """Every instance type that it knows for clusters."""
        ...

    def problems(self, request: Mapping[str, Any]) -> Sequence[tuple[Place, str]]:
        """Where a CreateCluster request departs from it: types, lengths, patterns, words."""
        ...


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Empty where no model was given: nothing is concluded from that."""

    types: frozenset[str] = frozenset()
    problems: tuple[tuple[Place, str], ...] = ()


def gather(model: ServiceModel, request: Mapping[str, Any]) -> ModelFacts:
    """Loading the model takes about a third of a second."""
    return ModelFacts(model.instance_types(), tuple(model.problems(request)))
