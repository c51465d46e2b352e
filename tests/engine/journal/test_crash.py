"""What was acknowledged is there, whoever is killed."""

import gc
import random
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.toolkit.errors import HpctlError, ServiceUnavailable
from tests.engine.journal.beds import DatabaseBed
from tests.engine.journal.events import NOW, numbers, signal
from tests.engine.journal.test_facts import WELL

pytestmark = [pytest.mark.integration, pytest.mark.contract]

BATCH = 3
WRITER = """
import os, sys
from hpctl.engine.journal.rows import DaemonIdentity
from hpctl.engine.journal.store import JournalStore
from tests.engine.journal.events import NOW, signal
store = JournalStore(sys.argv[1])
store.take_lease(DaemonIdentity("head-1", os.getpid(), "0.1", "own", ""), store.daemon(), NOW, 30.0)
first, count = int(sys.argv[2]), int(sys.argv[3])
for batch in range(first, first + count):
    store.append([signal(batch * 3 + i) for i in range(3)])
    os.write(1, b"%d\\n" % batch)
sys.stdin.read()
"""


@contextmanager
def writer(url: str, first: int, count: int):
    """A daemon that appends batches and says so after each; killed at the end."""
    command = [sys.executable, "-c", WRITER, url, str(first), str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def read(process: subprocess.Popen[bytes]) -> int:
    return int(process.stdout.readline())


def test_killed_after_the_acknowledgement(database: DatabaseBed) -> None:
    with writer(database.url, 0, 1) as process:
        assert read(process) == 0
        process.kill()
        process.wait(timeout=60)
        assert numbers(database.read().events()) == [0, 1, 2]


def test_killed_while_appending_again_and_again(database: DatabaseBed) -> None:
    dice, done = random.Random(4), 0
    for _ in range(3):
        with writer(database.url, done, 1_000_000) as process:
            for _ in range(dice.randrange(3, 20)):
                done = read(process) + 1
            time.sleep(dice.uniform(0, 0.005))
            process.kill()
            rest = process.stdout.read().split()  # written before it died
            done = int(rest[-1]) + 1 if rest else done
        store = database.open()
        # Takes the lease as the next daemon would: behind it nothing of the dead one is underway.
        store.take_lease(DaemonIdentity("head-1", 1, "0.1", "own", ""), store.daemon(), NOW, 30.0)
        found = numbers(store.events())
        assert found == list(range(len(found))), "in order, nothing twice"
        assert len(found) in (done * BATCH, (done + 1) * BATCH), "whole batches, none lost"
        done = len(found) // BATCH


def test_reading_while_a_daemon_writes(database: DatabaseBed) -> None:
    database.open()
    lengths: list[int] = []
    with writer(database.url, 0, 60) as process:
        reader = database.read()
        while not lengths or lengths[-1] < 60 * BATCH:
            found = numbers(reader.events())
            assert found == list(range(len(found)))
            assert len(found) % BATCH == 0, "half a batch was seen"
            lengths.append(len(found))
        assert process.poll() is None
    assert lengths == sorted(lengths)


# PyMySQL leaves its unconnected sockets to the garbage collector.
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_a_server_that_goes_away_and_comes_back(served: DatabaseBed) -> None:
    assert served.server is not None
    store = served.open()
    store.take_lease(DaemonIdentity("head-1", 1, "0.1", "own", ""), store.daemon(), NOW, 30.0)
    store.append([signal(1)])
    store.record([WELL])
    with served.server.away():
        for call in (store.health, store.requests, store.daemon, lambda: list(store.events())):
            with pytest.raises(ServiceUnavailable):
                call()
        with pytest.raises(ServiceUnavailable):
            store.answer(1)
        with pytest.raises(OSError, match="cannot be written"):
            store.append([signal(2)])
        with pytest.raises(OSError, match="cannot be written"):
            store.record([WELL])
        with pytest.raises(OSError, match="cannot be written"):
            store.renew_lease(NOW, 30.0, 0.0, "", "own")
        with pytest.raises(ServiceUnavailable):
            store.take_lease(DaemonIdentity("head-1", 1, "0.1", "own", ""), None, NOW, 30.0)
        with pytest.raises(HpctlError, match="cannot write the request"):
            store.ask("pause", "", "ann", NOW)
        with pytest.raises(ServiceUnavailable):
            served.open()
        gc.collect()
    store.append([signal(3)])
    assert numbers(store.events()) == [1, 3]
    assert store.health() == {WELL.generation.node: WELL}
