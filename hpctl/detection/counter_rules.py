"""Compare counters of devices with limits, as the rows of the fault tables define."""

from msgspec import Struct

from hpctl.detection.check import Limits
from hpctl.detection.rdma_counters import CounterSweepTrace
from hpctl.faults.table import FaultRow, list_check_fault_rows
from hpctl.vocabulary.model import DeviceVerdict

_SPANS_S = {"_per_s": 1.0, "_per_min": 60.0, "_per_hour": 3600.0}


class CounterGrowthRule(Struct, frozen=True):
    """One row that compares a counter: `file` is its path below the device's folder."""

    name: str
    file: str
    code: str
    verdict: DeviceVerdict
    operator: str
    limit: str

    @property
    def growth_window_s(self) -> float:
        """Return the seconds in which the counter may grow by the limit, from the suffix of the
        limit's name."""
        return next(span for end, span in _SPANS_S.items() if self.limit.endswith(end))

    def compute_allowed_growth(self, age_s: float, limits: Limits) -> float:
        """Return by how much the counter may grow in so many seconds."""
        if self.operator == "bucket":
            return limits[f"burst_{self.limit}"] + limits[f"refill_{self.limit}"] * age_s
        return limits[self.limit] * max(1.0, age_s / self.growth_window_s)


def list_check_counter_rules(check: str) -> tuple[CounterGrowthRule, ...]:
    """Return the rules of a check, in the order of its rows."""
    return tuple(_parse_counter_rule(row) for row in list_check_fault_rows(check) if row.counter)


def find_devices_over_growth_limit(
    seen: CounterSweepTrace, rule: CounterGrowthRule, limits: Limits
) -> dict[str, tuple[int, float]]:
    """Return the devices whose counter grew by too much: by how much, and in how many seconds.

    Of the earlier sweeps that are compared, the one with the largest growth counts.
    """
    past = seen.past
    if rule.operator == ">":
        within = [then for then in past if seen.now.at - then.at <= rule.growth_window_s]
        past = tuple(within) or past[-1:]
    worst: dict[str, tuple[int, float]] = {}
    for then in past:
        age = seen.now.at - then.at
        allowed = rule.compute_allowed_growth(age, limits)
        for device, grown in seen.rises(then, rule.name):
            if grown > allowed and grown > worst.get(device, (0, 0.0))[0]:
                worst[device] = grown, age
    return worst


def _parse_counter_rule(row: FaultRow) -> CounterGrowthRule:
    operator, _, limit = row.when.partition(" ")
    name = row.counter.rpartition("/")[2]
    verdict = DeviceVerdict.WARN if row.treatment == "I" else DeviceVerdict.FAIL
    return CounterGrowthRule(name, row.counter, row.code, verdict, operator, limit)
