"""Cloud providers. Here that of a cluster which has none: drain and requeue only, on any Slurm."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType

from hpctl.toolkit.compat import UTC
from hpctl.vocabulary.cloud_facts import CloudProviderView
from hpctl.vocabulary.identity import InstanceId
from hpctl.vocabulary.outcome import Outcome

REFUSED = Outcome.rejected("no_provider", "the configuration names no cloud provider")


class NoProvider:
    """Nothing reboots or replaces a node: recoveries that need it wait for a person."""

    calls: Mapping[tuple[str, str], int] = MappingProxyType({})

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._now = now

    def view(self) -> CloudProviderView:
        """Return a view that says so."""
        return CloudProviderView(as_of=self._now(), present=False)

    def reboot(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Rejected("no_provider") for every id."""
        return dict.fromkeys(instances, REFUSED)

    def replace(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Rejected("no_provider") for every id."""
        return dict.fromkeys(instances, REFUSED)

    def add(self, group: str, count: int, size: int, token: str) -> Outcome:
        """Rejected("no_provider")."""
        return REFUSED

    def remove(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Rejected("no_provider") for every id."""
        return dict.fromkeys(instances, REFUSED)
