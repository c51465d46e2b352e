"""One line of the fault table, and the letters of its treatments.

- I   count it only; the node stays in service
- J   the job's fault, or fatal to one job only: restart the job, the node stays
- R1  close the node to new work, reset the GPU once its jobs have ended
- R2  stop the jobs, start them elsewhere, reset the GPU
- B   stop the jobs, start them elsewhere, reboot
- X   stop the jobs, start them elsewhere, replace the instance
- H   nothing automatic; a human should read it
"""

from __future__ import annotations

from dataclasses import dataclass

DAY = 86400.0
WEEK = 7 * DAY


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `codes` may list several numbers and ranges (`39-41 70-72`).

    `rule` is the rule id's stem: with codes the id is `<rule>-<code>`, without it is the stem.
    `watch` makes a node with this finding Suspect for display, never Faulty. `ladder` replaces
    the treatment's own. `settle_s` and `window_s` are FaultClass's fields, in seconds.
    """

    rule: str
    codes: str
    treatment: str
    meaning: str
    nvidia: str
    differs: str = ""
    settle_s: float = 0.0
    window_s: float = WEEK
    watch: bool = False
    ladder: str = ""
