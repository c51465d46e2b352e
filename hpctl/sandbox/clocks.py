"""The clocks of a sandbox's hosts: what its daemon and agents take for the time of day.

A library that is preloaded adds the seconds that a file holds to the wall clock, and reads them
again all the time. The monotonic clocks stay as they are, as on a host whose wall clock is set.
slurmctld, slurmd, munged and the jobs keep the machine's own time.
"""

from pathlib import Path

ENV = "HPCTL_TEST_CLOCK"
"""Names the file of the offset to the library."""


def set_clock_offset(clock: Path, seconds: int) -> None:
    """Set a clock that many seconds forward, or back. It is written in one piece."""
    part = clock.with_suffix(".part")
    part.write_text(f"{seconds:+d}\n")
    part.replace(clock)


def make_clock_environment(library: str, clock: Path) -> dict[str, str]:
    """Return the environment of a process that goes by a clock."""
    return {"LD_PRELOAD": library, ENV: str(clock)}
