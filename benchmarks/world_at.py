"""A daemon's loop and its world server over a made-up cluster.

`python -m benchmarks.world_at FOLDER NODES` says "ready" on standard output, and ends with its
standard input.
"""

import os
import select
import sys
from pathlib import Path

from msgspec.structs import replace

from benchmarks.cycle_at import RULES, Bench
from benchmarks.world import CAREFUL, CLOCK, World, node_name, xid
from hpctl.engine.config import ClusterSection, Config
from hpctl.engine.journal.events import RequestTaken
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.leadership import Leadership, LeaseTerms
from hpctl.engine.world_server import WorldServer

EVERY_S = 5.0
SICK = node_name(7)


def serve(folder: Path, nodes: int) -> None:
    """Cycle and serve until standard input ends."""
    world = World(nodes, nodes // 10)
    bench = Bench(world, folder)
    me = DaemonIdentity("bench", os.getpid(), "0", "own", "")
    leadership = Leadership(bench.store, me, LeaseTerms(3600.0, shared=False), CLOCK)
    leadership.try_to_lead()
    # As in the journal that is read without a daemon, one node is held.
    pause = RequestTaken(CLOCK.now(), 0, "pause", "", "an operator", "", True)
    bench.store.append([pause])
    bench.loop.state.fold(pause)
    config = Config(state_dir=folder, cluster=ClusterSection("none", "bench"))
    server = WorldServer(config, leadership, bench.memory)
    server.start()
    said = False
    while True:
        health = world.health()
        known = health[SICK]
        health[SICK] = replace(known, findings=(*known.findings, xid("79", CLOCK.now())))
        bench.health.take_over(health)
        bench.loop.cycle(CAREFUL, RULES)
        server.offer(bench.loop.last)
        if not said:
            print("ready", flush=True)
            said = True
        if select.select([sys.stdin], [], [], EVERY_S)[0]:
            server.stop()
            return


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
