"""The agent's view of itself: what it sheds, when, and when it takes it back."""

from hpctl.agent.runner import CALM_WINDOWS, OVER_WINDOWS, WINDOW_S, Budget, Usage


class Meter:
    """A process that uses what it is told to."""

    def __init__(self) -> None:
        self.cpu_s, self.memory_mb, self.now = 0.0, 20.0, 0.0

    def __call__(self) -> Usage:
        return Usage(self.cpu_s, self.memory_mb)

    def windows(self, budget: Budget, count: int, cpu_percent: float) -> None:
        for _ in range(count):
            self.now += WINDOW_S
            self.cpu_s += WINDOW_S * cpu_percent / 100
            budget.look(self.now)


def started(meter: Meter) -> Budget:
    budget = Budget([0, 1, 2, 2], measure=meter)
    budget.look(0.0)
    return budget


def test_the_highest_level_goes_first_and_level_0_never() -> None:
    meter = Meter()
    budget = started(meter)
    meter.windows(budget, OVER_WINDOWS - 1, 3)
    assert not budget.shed(2)
    meter.windows(budget, 1, 3)
    assert (budget.shed(2), budget.shed(1), budget.shed(0)) == (True, False, False)
    meter.windows(budget, 10 * OVER_WINDOWS, 3)
    assert (budget.shed(2), budget.shed(1), budget.shed(0)) == (True, True, False)
    (told,) = budget.observations(["host.zombies", "gpu.clocks"])
    assert told.detail == "not run to save resources: gpu.clocks, host.zombies"
    assert "3.00 % of a core" in told.evidence


def test_memory_counts_too() -> None:
    meter = Meter()
    budget = started(meter)
    meter.memory_mb = 41
    meter.windows(budget, OVER_WINDOWS, 0.1)
    assert budget.shed(2)


def test_they_come_back_after_a_long_calm() -> None:
    meter = Meter()
    budget = started(meter)
    meter.windows(budget, OVER_WINDOWS, 3)
    meter.windows(budget, CALM_WINDOWS - 1, 0.1)
    assert budget.shed(2)
    meter.windows(budget, 1, 0.1)
    assert not budget.shed(2)
