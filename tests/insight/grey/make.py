"""One seed, one cluster: who runs what, what befalls it, and what is broken in it."""

from random import Random

from tests.insight.grey.corpus import KINDS, TICK, Fault, Job, Node, World


def world(seed: int, *, nodes: int = 64, hours: float = 2.5) -> World:
    """The cluster of one seed."""
    random = Random(f"world {seed}")
    seconds = int(hours * 3600) // TICK * TICK
    mixed = random.random() < 0.6
    made = []
    rack = 0.0
    for n in range(nodes):
        if n % 8 == 0:
            rack = random.choice((0.0, 0.0, 0.0, random.uniform(0.02, 0.06)))
        made.append(
            Node(
                kind=KINDS[int(mixed and n >= nodes * 0.7)],
                silicon=rack + abs(random.gauss(0, 0.012)),
                hot=random.uniform(0.005, 0.03) if random.random() < 0.15 else 0.0,
                replay=random.choice((0.0, 0.0, 0.0, random.uniform(0.01, 0.5))),
                old_efa=random.random() < 0.05,
            )
        )
    jobs = _jobs(random, nodes, seconds)
    out = World(
        seed, made, jobs, [], _blips(random, nodes, seconds), _restarts(random, nodes, seconds),
        seconds, random.uniform(0, 24),
    )  # fmt: skip
    _break(random, out)
    return out


def _jobs(random: Random, nodes: int, seconds: int) -> list[Job]:
    """Jobs of all sizes that come and go, as many as fit."""
    free_at = [0] * nodes
    jobs: list[Job] = []
    for t in range(0, seconds, 60):
        idle = [n for n in range(nodes) if free_at[n] <= t]
        while idle and random.random() < 0.5:
            size = min(len(idle), random.choice((1, 2, 4, 6, 8, 8, 12, 16, 16, 24, 32)))
            at = random.randrange(len(idle) - size + 1)
            mine, idle = idle[at : at + size], idle[:at] + idle[at + size :]
            end = min(t + random.randint(900, 7200), seconds + 600)
            jobs.append(_job(random, len(jobs) + 1, mine, t, end))
            for n in mine:
                free_at[n] = end + random.randint(0, 300)
    return jobs


def _job(random: Random, number: int, nodes: list[int], start: int, end: int) -> Job:
    job = Job(
        id=number, nodes=nodes, start=start, end=end,
        shape=random.choices(("sync", "pipeline", "leader", "serving"), (5, 2, 1, 2))[0],
        load=random.uniform(0.85, 1.0), every=random.randint(400, 1800),
        pause=random.randint(10, 120), lossy=10 ** random.uniform(-7, -4.5),
        lag={n: random.randint(0, 120) for n in nodes},
    )  # fmt: skip
    for what, chance in (("cap", 0.4), ("congestion", 0.5)):
        if random.random() < chance:
            at = random.randrange(start, max(start + 1, end - 180))
            until = at + random.randint(120, 900)
            share = 1.0 if what == "cap" else random.uniform(0.25, 1.0)
            # What only one node feels is that node's; a switch or a limit is felt by several.
            hit = frozenset(n for n in nodes if random.random() < share)
            hit |= frozenset(random.sample(nodes, min(3, len(nodes))))
            size = random.uniform(0.6, 0.85) if what == "cap" else 10 ** random.uniform(-4, -2)
            job.shared.append((what, at, until, size, hit))
    return job


def _blips(random, nodes, seconds):
    """Short and harmless: a hot minute, a burst of replays, an incast."""
    blips: dict[int, list[tuple[int, int, str, float]]] = {}
    for n in range(nodes):
        for _ in range(int(random.expovariate(1 / 1.5))):
            at, what = random.randrange(seconds), random.choice(("throttle", "replay", "retrans"))
            size = {
                "throttle": random.uniform(0.05, 0.6),
                "replay": 10 ** random.uniform(0, 3),
                "retrans": 10 ** random.uniform(-4, -2),
            }[what]
            blips.setdefault(n, []).append((at, at + random.randint(10, 90), what, size))
    return blips


def _restarts(random: Random, nodes: int, seconds: int) -> dict[int, list[tuple[int, int, bool]]]:
    """Agents and drivers that restart: a gap, and in the driver's case counters from zero."""
    restarts = {}
    for n in range(nodes):
        if random.random() < 0.25:
            at = random.randrange(seconds)
            gap = random.randint(1, 12) * TICK
            restarts[n] = [(at // TICK * TICK, at // TICK * TICK + gap, random.random() < 0.5)]
    return restarts


def _break(random: Random, world: World) -> None:
    """The faults of one world: a handful on single nodes, sometimes a power brake on nine."""
    large = [j for j in world.jobs if len(j.nodes) >= 5 and j.end - j.start >= 1200]
    taken: set[int] = set()
    for _ in range(random.randint(5, 9)):
        if not large:
            break
        job = random.choice(large)
        node = random.choice(job.nodes)
        if node in taken:
            continue
        taken.add(node)
        begin = max(job.start, 300)
        start = random.randrange(begin, max(begin + 1, job.end - 500))
        world.faults.append(_fault(random, node, start))
    big = [j for j in large if len(j.nodes) >= 12]
    if big and random.random() < 0.25:
        job = random.choice(big)
        start = random.randrange(job.start, max(job.start + 1, job.end - 900))
        size = random.uniform(0.2, 0.9)
        world.faults += [
            Fault("brake", n, start, world.seconds, size * random.uniform(0.7, 1.1))
            for n in random.sample([n for n in job.nodes if n not in taken], 9)
            if len(job.nodes) - len(taken.intersection(job.nodes)) >= 12
        ]  # fmt: skip


def _fault(random: Random, node: int, start: int) -> Fault:
    kind = random.choices(("throttle", "clock", "retrans", "replay", "remote"), (3, 3, 2, 2, 1))[0]
    size = {
        "throttle": random.uniform(0.05, 0.9),
        "clock": random.uniform(0.55, 0.91),
        "retrans": 10 ** random.uniform(-3.7, -1.7),
        "replay": 10 ** random.uniform(0.5, 3.3),
        "remote": 10 ** random.uniform(-1, 1),
    }[kind]
    fault = Fault(kind, node, start, start + random.randint(480, 3600), size)
    if kind in ("throttle", "retrans", "replay") and random.random() < 0.25:
        fault.on, fault.off = random.randint(40, 150), random.randint(10, 60)
    if kind == "remote":
        fault.witnesses = 1.0 if random.random() < 0.7 else 0.6
    return fault
