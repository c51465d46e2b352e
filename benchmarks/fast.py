"""What saves on the nodes' own disks cost the training and the node, and what a restore takes.

Real helpers and sockets on loopback addresses, DCP's files with random bytes. Rivals: the same
training and saves without helpers; a plain socket that copies the same bytes and checks nothing;
and each node reading the whole step from a shared directory that gives all nodes together a tenth
of the network (NETWORK bytes a second, to which the helpers are held too). Then the same copy,
flush and restore while STRANGERS connections that prove nothing send a byte now and then.
"""

import io
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.table import Outcome, Row, median
from hpctl.checkpoints.fast import peer as peers
from hpctl.checkpoints.fast.peer import TransferRateLimiter
from tests.checkpoints.checkpoint_files import dcp_metadata, pickle_of
from tests.checkpoints.fast import cluster
from tests.checkpoints.fast.cluster import Nodes, children

MB = 1 << 20
NETWORK = 400 * MB
STRANGERS = 256
DRIP_S = 0.05
SLOWED = """
from hpctl.checkpoints.fast import peer
pace, pull = peer.TransferRateLimiter({rate}), peer.PeerConnection.receive_file
def slow(self, write, p, what, **given):
    return pull(self, write, lambda n: (p(n), pace(n)), what, **given)
peer.PeerConnection.receive_file = slow
"""
TRAIN = """
import os, sys, time
from pathlib import Path
disk, files = Path(sys.argv[1]), Path(sys.argv[3])
rank, until = int(sys.argv[2]), float(sys.argv[4])
steps, saved, due = 0, 0, time.time()
while time.time() < until:
    if time.time() >= due:
        due, saved = due + 2.0, saved + 1
        place = disk / f"step-{saved + int(sys.argv[5])}"
        place.mkdir(exist_ok=True)
        names = [f"__{rank}_0.distcp"] + [".metadata"] * (rank == 0)
        for name in names:
            (place / name).write_bytes((files / name).read_bytes())
            time.sleep(0.2 * (rank == 0))
    sum(range(20_000))
    steps += 1
print(steps)
"""


def archive(size: int) -> bytes:
    """What torch saves one tensor of so many bytes as."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as made:
        made.writestr("archive/data.pkl", pickle_of({"x": 1}))
        made.writestr("archive/data/0", os.urandom(size))
        made.writestr("archive/version", b"3\n")
    return out.getvalue()


def files(ranks: int, size: int) -> dict[str, bytes]:
    """A DCP step."""
    data = {f"__{rank}_0.distcp": archive(size) for rank in range(ranks)}
    rows = [(name, 0, len(raw)) for name, raw in data.items()]
    return {**data, ".metadata": dcp_metadata(rows)}


def save(nodes: Nodes, step: int, made: dict[str, bytes]) -> str:
    """Rank n's files on node n, `.metadata` last and on the first."""
    for at, name in enumerate(made):
        host = nodes.spec.hosts[at % len(nodes.spec.hosts)]
        cluster.save(nodes, f"step-{step}", {name: made[name]}, {name: host})
    return f"step-{step}"


def cpu_s(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def helpers(nodes: Nodes) -> list[int]:
    """The helpers' processes, and those that start them again."""
    return [pid for each in nodes.processes.values() for pid in (each.pid, *children(each.pid))]


def pss_mb(pids: list[int]) -> float:
    """Memory of these processes, what they share counted once."""
    lines = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(text.partition("\nPss:")[2].split()[0]) for text in lines) / 1024


@contextmanager
def helper(before: str = "") -> Iterator[None]:
    """Helpers as they are: the tests' look ten times as often."""
    plain = cluster.HELPER
    cluster.HELPER = before + plain.replace(cluster.LOOK_OFTEN, "")
    try:
        yield
    finally:
        cluster.HELPER = plain


@contextmanager
def room() -> Iterator[Path]:
    """A directory on the disk that the machine has."""
    with tempfile.TemporaryDirectory(prefix="hpctl-bench-") as made:
        yield Path(made)


def trained(nodes: Nodes, source: Path, first: int, seconds: float) -> int:
    """Steps of one rank on each node that saves every two seconds."""
    until = str(time.time() + seconds)
    made = [
        subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(nodes.disk(host)), str(rank), str(source), until,
             str(first)],
            stdout=subprocess.PIPE, text=True,
        )
        for rank, host in enumerate(nodes.spec.hosts)
    ]  # fmt: skip
    return sum(int(one.communicate()[0]) for one in made)


def slowdown() -> float:
    """The part of the training's steps that helpers cost, a median of pairs. Who begins changes:
    what one leaves to the disk is written while the other trains."""
    costs = []
    with room() as place, helper(), Nodes(place, 2) as nodes:
        source = place / "files"
        source.mkdir()
        for name, raw in files(2, 24 * MB).items():
            (source / name).write_bytes(raw)
        nodes.resume()

        def replicated(first: int) -> int:
            for host in nodes.spec.hosts:
                nodes.start(host)
            time.sleep(1.0)
            steps = trained(nodes, source, first, 9.0)
            for host in nodes.spec.hosts:
                nodes.kill(host)
            return steps

        for host in nodes.spec.hosts:
            nodes.kill(host)
        for pair in range(6):
            first = 1000 * (pair + 1)
            if pair % 2:
                alone = trained(nodes, source, first, 9.0)
                with_helpers = replicated(first + 100)
            else:
                with_helpers = replicated(first)
                alone = trained(nodes, source, first + 100, 9.0)
            costs.append(100 * (1 - with_helpers / alone))
            for host in nodes.spec.hosts:
                for left in nodes.disk(host).glob("step-*"):
                    shutil.rmtree(left)
    return median(costs)


def idle_and_copying() -> tuple[float, float, float, float]:
    """Of one node's helper: % of a core between saves, CPU seconds a GB that it sends and gets,
    MB, and GB/s from a save to its copies."""
    with room() as place, helper(), Nodes(place, 2) as nodes:
        nodes.resume()
        nodes.safe(save(nodes, 1, files(2, MB)))
        time.sleep(2)
        pids = helpers(nodes)
        before = sum(map(cpu_s, pids))
        time.sleep(20)
        idle = 100 * (sum(map(cpu_s, pids)) - before) / 20 / 2
        made = files(2, 512 * MB)
        size = sum(map(len, made.values())) / 1e9
        before = sum(map(cpu_s, pids))
        name = save(nodes, 2, made)
        begun = time.perf_counter()
        nodes.safe(name, 60)
        took = time.perf_counter() - begun
        return idle, (sum(map(cpu_s, pids)) - before) / size, pss_mb(pids) / 2, size / took


def one_way(source: Path, to: Path) -> float:
    """GB/s of a file through a helper's connection, as a copy to a partner goes."""
    size = source.stat().st_size
    with room() as place, Nodes(place, 2, rate=1 << 40) as nodes:
        nodes.resume()
        with nodes.peer("n0") as peer, to.open("wb") as target:
            step = nodes.disk("n0") / "step-1"
            step.mkdir()
            shutil.copyfile(source, step / "x")
            file = cluster.saved_file(step / "x", "x", "n0")
            begun = time.perf_counter()
            peer.receive_file(target.write, lambda _: None, "get", step="step-1", file=file)
            return size / 1e9 / (time.perf_counter() - begun)


def plain_socket(source: Path, to: Path) -> tuple[float, float]:
    """Sendfile into a socket, and a loop that writes what comes out of it: GB/s, CPU seconds a GB
    of both ends."""
    size, server = source.stat().st_size, socket.create_server(("127.0.9.1", 0))

    def send() -> None:
        connection, _ = server.accept()
        with connection, source.open("rb") as file:
            connection.sendfile(file)

    threading.Thread(target=send, daemon=True).start()
    buffer = memoryview(bytearray(MB))
    with socket.create_connection(server.getsockname()) as client, to.open("wb") as target:
        begun, before = time.perf_counter(), time.process_time()
        while count := client.recv_into(buffer):
            target.write(buffer[:count])
        took = time.perf_counter() - begun
    server.close()
    return size / 1e9 / took, (time.process_time() - before) / (size / 1e9)


def restored() -> tuple[float, float]:
    """Seconds until four nodes have a step of which one lost its share; and until each has read
    all of it from the slow shared directory."""
    made = files(4, 64 * MB)
    with room() as place:
        with helper(SLOWED.format(rate=NETWORK)), Nodes(place, 4) as nodes:
            nodes.resume()
            name = save(nodes, 1, made)
            nodes.safe(name, 60)
            nodes.lose("n2")
            nodes.start("n2")
            begun = time.perf_counter()
            assert nodes.resume().found is not None, nodes.said
            ours = time.perf_counter() - begun
        pace, begun = TransferRateLimiter(NETWORK // 10), time.perf_counter()
        for _ in range(4):
            for raw in made.values():
                for at in range(0, len(raw), MB):
                    pace(min(MB, len(raw) - at))
    return ours, time.perf_counter() - begun


class Drip:
    """Connections to a job's helpers that never finish a handshake, and come again when closed."""

    def __init__(self, nodes: Nodes, count: int) -> None:
        port = next(peers.list_helper_ports(nodes.spec))
        addresses = [(address, port) for address in nodes.spec.addresses]
        self._places = [addresses[number % len(addresses)] for number in range(count)]
        self._over = threading.Event()
        self._held: dict[int, socket.socket] = {}
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        for held in self._held.values():
            held.close()

    def _run(self) -> None:
        while not self._over.wait(DRIP_S):
            for number, place in enumerate(self._places):
                self._drip(number, place)

    def _drip(self, number: int, place: tuple[str, int]) -> None:
        try:
            if number not in self._held:
                self._held[number] = socket.create_connection(place, timeout=1.0)
            self._held[number].send(b"\x16")
        except OSError:
            held = self._held.pop(number, None)
            if held is not None:
                held.close()


def time_work(strangers: int) -> tuple[float, float, float]:
    """Seconds of a copy to the partners, of a restore after a lost node, and of the last flush."""
    made = files(4, 32 * MB)
    with room() as place, helper(), Nodes(place, 4) as nodes:
        nodes.resume()
        with Drip(nodes, strangers):
            name = save(nodes, 1, made)
            begun = time.perf_counter()
            nodes.safe(name, 60)
            copied = time.perf_counter()
            nodes.lose("n2")
            nodes.start("n2")
            restoring = time.perf_counter()
            assert nodes.resume().found is not None, nodes.said
            restored = time.perf_counter()
            save(nodes, 2, made)
            ending = time.perf_counter()
            nodes.end()
            ended = time.perf_counter()
        assert (nodes.shared / "step-2").is_dir(), nodes.log()
    return copied - begun, restored - restoring, ended - ending


def compare_with_strangers() -> list[tuple[float, float]]:
    """Copy, restore, flush: seconds with strangers and without, medians of pairs."""
    pairs = [(time_work(STRANGERS), time_work(0)) for _ in range(5)]
    return [
        (median([with_[at] for with_, _ in pairs]), median([alone[at] for _, alone in pairs]))
        for at in range(3)
    ]


def run() -> Outcome:
    """Measure."""
    outcome = Outcome("fast")
    slow = slowdown()
    idle, cost, memory, rate = idle_and_copying()
    with room() as place:
        (place / "from").write_bytes(os.urandom(512 * MB))
        pairs = [
            (one_way(place / "from", place / "to"), plain_socket(place / "from", place / "to"))
            for _ in range(5)
        ]
    ours, theirs = median([a for a, _ in pairs]), median([b for _, (b, _) in pairs])
    least = median([cpu for _, (_, cpu) in pairs])
    mended, read = restored()
    outcome.rows = [
        Row("slowdown of training", slow, "%", "no helpers, the same saves", bar=3.0),
        Row("helper between saves", idle, "% of a core", bar=0.1),
        Row(
            "helper at 1 GB/s",
            100 * cost,
            "% of a core",
            "sendfile, unchecked",
            100 * least,
            200 * least,
        ),
        Row("helper's memory", memory, "MB a node", bar=60.0),
        Row("one copy", ours, "GB/s", "sendfile, unchecked", theirs, 0.6 * theirs, least=True),
        Row("lost share restored", mended, "s", "read from the shared directory", read, read / 5),
    ]
    for what, (with_, alone) in zip(
        ("copy", "restore", "flush"), compare_with_strangers(), strict=True
    ):
        title = f"{what} with {STRANGERS} strangers"
        outcome.rows.append(Row(title, with_, "s", "no strangers", alone, 1.2 * alone))
    outcome.notes = [f"two nodes save and copy to each other: {rate:.2f} GB/s until both are safe"]
    return outcome
