"""How long a run's silences are when all is well, learnt from its own past. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median

from hpctl.core.run_policy import RunPolicy

WINDOW = 64
FEWEST = 3
"""Silences between steps that must be known before they explain anything."""
SAVE_FLOOR_S = START_FLOOR_S = 600.0
SAVE_FACTOR = 3.0
PAUSE_FACTOR = 1.5
MOST_PHASES = 64


@dataclass(slots=True)
class RunPace:
    """The past that a hang is judged by. Durations in seconds."""

    silences: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """Between one report of a new step and the next, whatever number of steps lay between."""
    longest_pause: float = 0.0
    """The longest such silence that the run came out of by itself."""
    longest_start: float = 0.0
    """The longest from a start to its first step."""
    longest_early: float = 0.0
    """The longest of the first silences of a start: compiling, allocating, warming up."""
    longest_save: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    """The longest that each phase without steps has lasted."""
    past: float | None = None
    """The median silence of the start before this one."""

    def renewed(self) -> RunPace:
        """What the next start of the same run may go by."""
        return RunPace(
            longest_start=self.longest_start,
            longest_early=self.longest_early,
            longest_save=self.longest_save,
            phases=dict(self.phases),
            past=self.median() or self.past,
        )

    def median(self) -> float | None:
        """The run's own median silence between steps, None while too little is known."""
        return median(self.silences) if len(self.silences) >= FEWEST else None

    def began(self, seconds: float) -> None:
        """The first step of a start came after so long."""
        self.longest_start = max(self.longest_start, seconds)

    def stepped(self, silence: float, *, excused: bool) -> None:
        """A new step came after so long; `excused` where a save or another phase lay between."""
        if len(self.silences) < FEWEST:
            self.longest_early = max(self.longest_early, silence)
        elif not excused:
            self.longest_pause = max(self.longest_pause, silence)
        self.silences.append(silence)

    def saved(self, seconds: float) -> None:
        """A save took so long."""
        self.longest_save = max(self.longest_save, seconds)

    def left(self, phase: str, seconds: float) -> None:
        """A phase without a step in it is over."""
        if phase in self.phases or len(self.phases) < MOST_PHASES:
            self.phases[phase] = max(self.phases.get(phase, 0.0), seconds)

    def start_bound(self, policy: RunPolicy) -> float:
        """Seconds to the first step that are explained, by an earlier start where there was one."""
        if not self.longest_start:
            return policy.hang_start_s
        own = max(START_FLOOR_S, policy.hang_factor * self.longest_start)
        return min(own, policy.hang_start_s)

    def step_bound(self, policy: RunPolicy) -> float:
        """Seconds without a step that are still explained."""
        own = self.median()
        if own is None:
            if self.past is None:
                # The first steps compile, allocate and warm up: they explain nothing yet.
                return policy.hang_start_s
            early = policy.hang_factor * max(self.past, self.longest_early)
            return max(policy.hang_floor_s, min(early, policy.hang_start_s))
        paused = min(PAUSE_FACTOR * self.longest_pause, policy.hang_start_s)
        return max(policy.hang_floor_s, policy.hang_factor * own, paused)

    def save_bound(self) -> float:
        """Seconds that a save may take."""
        return max(SAVE_FLOOR_S, SAVE_FACTOR * self.longest_save)

    def phase_bound(self, phase: str, policy: RunPolicy) -> float:
        """Seconds that a phase without steps may take; the start's where it never ended before."""
        longest = self.phases.get(phase)
        if longest is None:
            return policy.hang_start_s
        return max(self.step_bound(policy), policy.hang_factor * longest)
