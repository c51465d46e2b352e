"""A crowd at the socket of the daemon's world costs neither the loop nor other readers anything."""

import os
import threading
import time
from pathlib import Path

import pytest

from hpctl.engine.world_reader import WorldReader
from hpctl.engine.world_wire import get_world_socket_path
from hpctl.toolkit import output
from tests.adversary.bed import Siege, begin
from tests.live import until

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.timeout(300),
]

READ_S = 15.0
"""How long a reader waits for the daemon's world, on a machine that three tests share."""


@pytest.fixture
def path(siege: Siege) -> Path:
    """The socket, of a journal that every user may read."""
    home = Path(siege.live.config.state_dir)
    found = get_world_socket_path(home)
    until(found.exists, 20, "the world is offered")
    assert (home / "journal.db").stat().st_mode & 0o004
    return found


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def test_a_crowd_at_its_socket_delays_neither_healing_nor_reading(siege: Siege, path: Path) -> None:
    before = descriptors(siege.pid)
    crowd = begin("crowd_world", path=str(path), seconds=25, width=200)
    crowd.ready()
    read: list[tuple[float, str]] = []

    def look() -> None:
        for _ in range(40):
            began = time.monotonic()
            world = WorldReader(siege.live.config).read(output.get_current_utc_time(), slurm=True)
            read.append((time.monotonic() - began, world.computed))
            time.sleep(0.2)

    reader = threading.Thread(target=look)
    reader.start()
    siege.heals()
    assert descriptors(siege.pid) < before + 100
    reader.join(120)
    made, most = crowd.result(90)
    assert made > 100
    assert most < 300, "what is no request gets a head at most"
    print(f"{made} connections; slowest read {max(read)[0]:.2f} s")
    assert len(read) == 40
    assert {why for _, why in read} == {""}, "each is the daemon's own"
    assert max(read)[0] < READ_S
    until(lambda: descriptors(siege.pid) < before + 20, 20, "their connections are dropped")
    siege.stands()
