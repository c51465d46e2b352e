"""What a world does when the faults stop, so that everything that was begun can end."""

from tests.properties.daemon import Daemon
from tests.properties.world import World

DAY = 86400.0
LONGEST = 15 * DAY
"""A recovery may wait fourteen days for the jobs on its node to end by themselves."""


def calm_down(world: World, daemon: Daemon, until: float = LONGEST) -> None:
    """No more faults; time passes, in ever larger steps, until every recovery has ended."""
    world.calm()
    daemon.kill_switch.on = False
    daemon.ask("resume")
    daemon.boundary.die_at = -1
    daemon.scheduler.mishaps.lost_before = daemon.scheduler.mishaps.lost_after = 0
    begun = world.clock.monotonic()
    pause, cycles = 1.0, 0
    while True:
        world.refresh()
        daemon.run()
        state = daemon.loop.state
        idle = not state.open_nodes and not state.open_jobs
        if idle and cycles > 20:
            return
        spent = world.clock.monotonic() - begun
        if spent > until:
            return
        cycles += 1
        pause = min(max(1.0, spent / 15), 3600.0) if cycles > 10 else 2.0
        world.passes(pause)
