"""The Provider of a cluster that has none: drain and requeue only, on any Slurm."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from hpctl.core.compat import UTC
from hpctl.core.model import InstanceId, Outcome, ProviderView


def _utc_now() -> datetime:
    return datetime.now(UTC)


class NoProvider:
    """Nobody reboots or replaces: recoveries that need it wait for a person."""

    def __init__(self, now: Callable[[], datetime] = _utc_now) -> None:
        self._now = now

    def view(self) -> ProviderView:
        """A view that says so."""
        return ProviderView(as_of=self._now(), present=False)

    def reboot(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Rejected("no_provider") for every id."""
        return _refused(instances)

    def replace(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Rejected("no_provider") for every id."""
        return _refused(instances)

    def add(self, group: str, count: int, size: int, token: str) -> Outcome:
        """Rejected("no_provider")."""
        return Outcome.rejected("no_provider", "the configuration names no cloud provider")

    def remove(self, instances: Sequence[InstanceId]) -> Mapping[InstanceId, Outcome]:
        """Rejected("no_provider") for every id."""
        return _refused(instances)


def _refused(instances: Sequence[InstanceId]) -> dict[InstanceId, Outcome]:
    refused = Outcome.rejected("no_provider", "the configuration names no cloud provider")
    return dict.fromkeys(instances, refused)
