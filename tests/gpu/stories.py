"""What a part tells: what was expected of each story, what was observed, and whether it held."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context


@dataclass(eq=False)
class Story:
    """One thing that was tried. `held` is None if it was not: `observed` then says why.

    `figures` are numbers with their unit in the name; `facts` is what else is worth keeping.
    """

    name: str
    expected: str
    observed: str = ""
    held: bool | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def skip(self, why: str) -> None:
        """Conclude that it was not tried."""
        self.held, self.observed = None, why

    def conclude(self, checks: Mapping[str, bool], observed: str) -> None:
        """Conclude from named checks: it held if all are true, else `observed` names the others."""
        failed = [name for name, is_true in checks.items() if not is_true]
        self.held = not failed
        self.observed = observed
        if failed:
            self.observed += f" [not: {', '.join(failed)}]"

    def line(self) -> str:
        """Return it as one line for the page."""
        words = {True: "held", False: "DID NOT HOLD", None: "not run"}[self.held]
        if self.held is None:
            return f"{self.name}: {words}: {self.observed}"
        figures = "".join(f"; {name} {value}" for name, value in self.figures.items())
        return (
            f"{self.name}: {words}. Expected: {self.expected}. Observed: {self.observed}{figures}"
        )


def record_story(context: Context, story: Story) -> None:
    """Put a story on the page and among the facts."""
    context.record(
        f"story/{story.name}",
        {
            "expected": story.expected,
            "observed": story.observed,
            "held": story.held,
            "figures": story.figures,
            "facts": story.facts,
        },
    )
    context.say(story.line())


def tell(context: Context, story: Story, act: Callable[[Story], None]) -> Story:
    """Run one story and record it, whatever becomes of it."""
    began = time.monotonic()
    try:
        act(story)
    except Exception:  # noqa: BLE001 -- the other stories go on, and the page shows it
        story.held = False
        story.observed = "raised " + traceback.format_exc(limit=-3).strip().replace("\n", " | ")
    story.figures.setdefault("took_s", round(time.monotonic() - began, 1))
    record_story(context, story)
    return story


def need_gpu(story: Story) -> None:
    """Conclude that a story means nothing without a GPU."""
    story.skip("needs a GPU")


def leave_out(story: Story) -> None:
    """Conclude that a dry run has no time for a story."""
    story.skip("left out of a dry run for its time")


def tell_side_by_side(
    context: Context, stories: Mapping[Story, Callable[[Story], None]], at_once: int
) -> None:
    """Run stories in threads, so many at once; returns when all have ended."""
    gate = threading.Semaphore(at_once)

    def run(story: Story, act: Callable[[Story], None]) -> None:
        with gate:
            tell(context, story, act)

    threads = [
        threading.Thread(target=run, args=pair, name=pair[0].name, daemon=True)
        for pair in stories.items()
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
