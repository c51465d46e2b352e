"""Weeks of a simulated cluster, from hpctl's own metrics: a normal one opens no alert, and each
thing that is so opens its alert once, for as long as it is so."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from docgen.alerts import make_rules as shipped_rules
from hpctl.faults.catalogue import build_fault_rules as catalogue_rules
from hpctl.vocabulary.assessment import Remedy, Urgency
from hpctl.vocabulary.identity import RuleId
from hpctl.vocabulary.policy import (
    FaultClassOverride,
    JobRecoveryPolicy,
    NodeRecoveryPolicy,
    OperatingMode,
    RecoveryPolicy,
)
from tests.engine.machine.test_mass_events import OVERRIDE as BROKEN_CHECK
from tests.engine.machine.test_mass_events import RULE, BrokenCheck
from tests.engine.machine.world import Defect
from tests.service.metrics.rule_bench import judge, make_test, open_at, opened
from tests.service.metrics.week import Cluster

pytestmark = pytest.mark.integration

HOUR, DAY = 60, 1440
EVALUATED = 2
"""How often the rules are evaluated, in minutes; scraped is every minute."""
QUIET = 3 * HOUR
"""Between two conditions."""
WAITS = {"HpctlPaused": 12 * HOUR + 5, "HpctlConfigurationRefused": HOUR + 5}
"""For how many minutes a condition lasts before its alert must be open; 40 for the others."""
HEALS = (
    Defect("79", kills=True),
    Defect("79", reboot_cures=False, kills=True),
    Defect("48", kills=True),
    Defect("", lost=True),
)


@pytest.fixture
def rules(tmp_path) -> Path:
    file = tmp_path / "hpctl.rules.yml"
    file.write_text(shipped_rules())
    return Path(file)


def work(cluster: Cluster, days: int) -> None:
    """Jobs come and go, most of the time on all nodes."""
    for minute in range(1, days * DAY, 200):
        cluster.at(minute, cluster.world.slurm.submit, 4, 170 * 60.0)
        cluster.at(minute + 20, cluster.world.slurm.submit, 2, 90 * 60.0)


def plan_a_normal_day(cluster: Cluster, day: int, dice: random.Random) -> None:
    """Faults that heal by themselves, restarts, a failover: what a day brings."""
    begins, world, daemon = day * DAY, cluster.world, cluster.daemon
    # Another node each time: one that breaks again within the week is an offender, and a ticket.
    cluster.at(begins + 90, world.breaks, world.names[day], HEALS[day % len(HEALS)])
    if day == 0:
        cluster.at(begins + 400, world.breaks, world.names[7], HEALS[(day + 1) % 3])
    # slurmctld is restarted, as logrotate may have it; the cloud throttles; a scrape is missed.
    cluster.at(begins + 200, world.away, "slurm", 4 * 60.0)
    cluster.at(begins + 230, world.away, "cloud", 12 * 60.0)
    # An upgrade of the leader while the standby is down for its own.
    cluster.at(begins + 300, cluster.stop, 1)
    cluster.at(begins + 302, cluster.stop, 0)
    cluster.at(begins + 305, cluster.restart, 0)
    cluster.at(begins + 306, cluster.start, 1)
    # An agent hangs for ten minutes.
    machine = world.machines[world.names[8 + day]]
    cluster.at(begins + 700, setattr, machine, "agent_silent", True)
    cluster.at(begins + 710, setattr, machine, "agent_silent", False)
    # A planned pause, and a node that an admin drains, for hours.
    cluster.at(begins + 760, daemon.ask, "pause")
    cluster.at(begins + 900, daemon.ask, "unpause")
    admins = dice.choice(world.names)
    cluster.at(begins + 1000, world.slurm.operator, admins, drain="BIOS, ada")
    cluster.at(begins + 1200, world.slurm.operator, admins, resume=True)
    if day % 3 == 0:
        cluster.at(begins + 1300, cluster.stop, 0)
        cluster.at(begins + 1301, cluster.lead, 1)
        cluster.at(begins + 1308, cluster.start, 0)
        cluster.at(begins + 1400, cluster.stop, 1)
        cluster.at(begins + 1401, cluster.lead, 0)
        cluster.at(begins + 1405, cluster.start, 1)


def shorten_windows(rules: Path, place: Path) -> Path:
    """Return the rules with a day for each window of a week, and without HpctlFalseDrains, which
    asks for a share of the week: the test of one day judges it.

    promtool loads 10,000 samples for a query and no more: less than a week of both head nodes.
    """
    text = rules.read_text()
    share = 'share7d{found="healthy"} > 0.5'
    assert "[7d]" in text
    assert share in text
    short = place / "short.rules.yml"
    short.write_text(text.replace("[7d]", "[1d]").replace(share, share.replace("0.5", "1")))
    return short


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("days", [1, pytest.param(7, marks=pytest.mark.nightly)])
def test_a_normal_week_opens_no_alert(days, rules, tmp_path, monkeypatch):
    policy = RecoveryPolicy(mode=OperatingMode.OWN)
    cluster = Cluster(monkeypatch, policy, size=16)
    work(cluster, days)
    dice = random.Random(7)
    for day in range(days):
        plan_a_normal_day(cluster, day, dice)
    cluster.play(days * DAY)
    ended = [rec.phase for rec in cluster.daemon.loop.state.nodes.values()]
    assert len(ended) > days, "nothing was treated"
    assert "escalated" not in set(map(str, ended)), ended
    checks = [opened(day * DAY - 2, DAY, EVALUATED, {}) for day in range(1, days + 1)]
    if days > 1:
        rules = shorten_windows(rules, tmp_path)
    judge(tmp_path, rules, EVALUATED, [make_test("normal", cluster.series, 1, checks)])


CHECK_WEEK = RecoveryPolicy(
    mode=OperatingMode.OWN,
    node=NodeRecoveryPolicy(verify_healthy_s=30.0),
    job=JobRecoveryPolicy(max_restarts=0),
)
ASK = FaultClassOverride(
    urgency=Urgency.NOW, ladder=(Remedy.ASK_HUMAN,), settle_s=0.0, meaning="a person looks first"
)
SITE = catalogue_rules({RULE: BROKEN_CHECK, RuleId("xid-48"): ASK})


class Conditions:
    """A week with each condition once: which alert it opens, from when until when, in minutes."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.spans: dict[str, tuple[int, int]] = {}
        self._free = 2 * HOUR

    def add(self, alert: str, hours: float) -> tuple[int, int]:
        """Reserve the next hours for a condition, and three quiet ones after it."""
        begins = self._free
        ends = begins + int(hours * HOUR)
        self._free = ends + QUIET
        self.spans[alert] = (begins, ends)
        return begins, ends

    @property
    def minutes(self) -> int:
        """How long all of it takes."""
        return self._free

    def flag(self, alert: str, hours: float, begin, end) -> None:
        """A condition that `begin` makes true, and `end` ends."""
        begins, ends = self.add(alert, hours)
        self.cluster.at(begins, begin)
        self.cluster.at(ends, end)


def plan_conditions(found: Conditions) -> None:
    """All that this cluster can show, one after the other."""
    cluster = found.cluster
    world, daemon, heads = cluster.world, cluster.daemon, cluster.heads

    def stop_all() -> None:
        cluster.stop(0)
        cluster.stop(1)

    def start_all() -> None:
        cluster.restart(0)
        cluster.start(1)

    def trouble(part: str, text: str) -> None:
        heads[0].troubles = {part: text}

    def silence(count: int, mode: OperatingMode, *, silent: bool) -> None:
        """In mode own a node whose agent is silent is rebooted."""
        daemon.policy = replace(CHECK_WEEK, mode=mode)
        for name in world.names[:count]:
            world.machines[name].agent_silent = silent

    found.flag("HpctlDown", 2, stop_all, start_all)
    found.flag("HpctlNoLeader", 2, cluster.follow, lambda: cluster.lead(0))
    found.flag("HpctlHeadDown", 5, lambda: cluster.stop(1), lambda: cluster.start(1))
    hang = lambda: setattr(heads[0], "hangs", True)  # noqa: E731
    found.flag("HpctlStuck", 2, hang, lambda: setattr(heads[0], "hangs", False))
    begins, _ = found.add("HpctlSlurmUnreadable", 2)
    cluster.at(begins, world.away, "slurm", 2.0 * 3600)
    begins, _ = found.add("HpctlCloudUnreadable", 3)
    cluster.at(begins, world.away, "cloud", 3.0 * 3600)
    found.flag("HpctlPaused", 20, lambda: daemon.ask("pause"), lambda: daemon.ask("unpause"))
    notify, configuration = "notify", "configuration"
    found.flag(
        "HpctlNotifierFails", 3, lambda: trouble(notify, "refused"), lambda: trouble(notify, "")
    )
    found.flag(
        "HpctlConfigurationRefused",
        5,
        lambda: trouble(configuration, "error"),
        lambda: trouble(configuration, ""),
    )
    found.flag("HpctlPartFails", 3, lambda: trouble("page", "ended"), lambda: trouble("page", ""))
    low = lambda share: cluster.free.update(a=share)  # noqa: E731
    found.flag("HpctlDiskLow", 3, lambda: low(0.05), lambda: low(0.5))
    found.flag("HpctlDiskFull", 3, lambda: low(0.01), lambda: low(0.5))
    for alert, count in (("HpctlAgentsSilent", 1), ("HpctlAgentsLost", 8)):
        begins, ends = found.add(alert, 4)
        cluster.at(begins, silence, count, OperatingMode.OBSERVE, silent=True)
        cluster.at(ends, silence, count, OperatingMode.OWN, silent=False)
    # A fault that a person is asked about: until the node is given back.
    begins, ends = found.add("HpctlEscalated", 9)
    victim = world.names[-1]
    cluster.at(begins, world.breaks, victim, Defect("48"))
    cluster.at(begins + 4 * HOUR, cluster.restart, 0)

    def give_back() -> None:
        world.machines[victim].defect, world.machines[victim].findings = None, ()
        daemon.ask("return", victim)

    cluster.at(ends, give_back)
    # A job whose budget of restarts is spent: until its owner releases or cancels it.
    begins, ends = found.add("HpctlJobGivenUp", 9)

    def submit() -> None:
        job = world.slurm.submit(2, 20 * 3600.0)
        world.breaks(world.slurm.jobs[job].nodes[0], Defect("79", kills=True))

    cluster.at(begins, submit)
    cluster.at(ends, lambda: [world.slurm.cancel(j) for j in list(world.slurm.jobs.values())])
    # A check that fails on most nodes.
    begins, ends = found.add("HpctlBlocked", 5)
    start, stop = begins * 60.0, ends * 60.0
    check = BrokenCheck(world, dict.fromkeys(world.names[:6], (start, stop)))
    for minute in range(begins - 1, ends + 2):
        cluster.at(minute, check.run)


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_each_condition_opens_its_alert_once_while_it_lasts(rules, tmp_path, monkeypatch):
    cluster = Cluster(monkeypatch, CHECK_WEEK, SITE)
    conditions = Conditions(cluster)
    plan_conditions(conditions)
    cluster.play(conditions.minutes)
    checks = []
    for name, (begins, ends) in conditions.spans.items():
        waits = WAITS.get(name, 40)
        checks += [open_at(name, begins - 1, 0), open_at(name, begins + waits, 1)]
        checks += [open_at(name, ends - 1, 1), open_at(name, ends + 25, 0)]
        # From when it begins until the next one does, it opens once, and no other alert does.
        checks.append(opened(ends + QUIET - 2, ends + QUIET - begins, EVALUATED, {name: 1}))
    judge(tmp_path, rules, EVALUATED, [make_test("conditions", cluster.series, 1, checks)])
