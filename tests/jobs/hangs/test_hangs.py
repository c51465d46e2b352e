"""Hangs of jobs that nobody wrapped: what an agent counts, what the core makes of it."""

import random
import shutil

import pytest
from msgspec.structs import replace

from hpctl.detection.check import CheckedMachine
from hpctl.detection.checks import job_activity as activity
from hpctl.detection.nvml import snapshot as nvml
from hpctl.engine.journal.events import GateBlocked, JobRecoveryOpened, SignalSeen, StepStarted
from hpctl.engine.journal.state import replay_events
from hpctl.jobs import advance
from hpctl.jobs.advance import JobRecoveryFacts
from hpctl.jobs.facts import collect_job_recovery_facts
from hpctl.jobs.hangs.daemon import HangDetector
from hpctl.jobs.hangs.decide import (
    JobNodeActivity,
    find_stalled_run,
    merge_node_activity_samples,
    update_job_hang_history,
)
from hpctl.jobs.plan import HUNG, is_run_known_to_hang, plan_failed_run_recoveries
from hpctl.vocabulary.hang import JobHang
from hpctl.vocabulary.identity import JobAttempt
from hpctl.vocabulary.job_recovery import JobRecovery, JobRecoveryPhase, JobRecoverySignal
from hpctl.vocabulary.outcome import Outcome
from hpctl.vocabulary.policy import JobHangPolicy, OperatingMode
from hpctl.vocabulary.recovery import (
    RecoveryPhaseMove,
    RecoveryStepRecord,
    StepKind,
    StepStartDecision,
    WaitDecision,
)
from hpctl.vocabulary.registration import EffectiveJobPolicy
from tests.fakes.values import OWN, at, generation, slurm_job, view_of
from tests.unflawed import unflawed

HANGS = JobHangPolicy()
JOB = slurm_job(7, nodes=("n1", "n2"), partition="all", state="RUNNING")
WORK = JobNodeActivity(ranks=8, working=8)
WAITS = JobNodeActivity(ranks=8, waiting=8)
TRAINS = JobNodeActivity(ranks=8, working=8, gpu_busy=0.98, gpu_w=610.0)
POLLS = JobNodeActivity(ranks=8, spinning=8, gpu_busy=1.0, gpu_w=190.0)
COMPUTES = replace(POLLS, gpu_w=560.0)
DEAD = JobNodeActivity(ranks=8, asleep=8, gpu_busy=0.0, gpu_w=110.0)
IDLE = JobNodeActivity(ranks=8, asleep=8)


class Watched:
    """One job, looked at each 10 s."""

    def __init__(self, policy=HANGS, job=JOB):
        self.policy, self.job, self.now = policy, job, 0.0
        self.track = update_job_hang_history(job, {}, None, policy, at(0))

    def see(self, seconds, n1, n2=WORK):
        """So long of the same; None for a node that is not heard. When it was found to hang."""
        began = self.now
        nodes = {n: a for n, a in (("n1", n1), ("n2", n2)) if a is not None}
        while self.now < began + seconds:
            self.now += 10
            self.track = update_job_hang_history(
                self.job, nodes, self.track, self.policy, at(self.now)
            )
            if self.track.hang:
                return self.now - began
        return None


@pytest.fixture
def run():
    watched = Watched()
    assert watched.see(600, WORK) is None
    return watched


@pytest.mark.parametrize(
    ("before", "pair", "node"),
    [
        (WORK, (WAITS, WAITS), None),
        (WORK, (WAITS, JobNodeActivity(ranks=8, waiting=7, spinning=1)), "n2"),
        (WORK, (JobNodeActivity(ranks=8, waiting=7, blocked=1), WAITS), "n1"),
        (WORK, (WAITS, JobNodeActivity()), None),
        (TRAINS, (POLLS, POLLS), None),
        (TRAINS, (POLLS, DEAD), "n2"),
        (TRAINS, (DEAD, replace(DEAD, blocked=1)), "n2"),
    ],
)
def test_a_standstill_is_shown_after_a_minute_whatever_is_done_about_it(before, pair, node):
    watched = Watched()
    watched.see(600, before, before)
    assert find_stalled_run(watched.track, HANGS, JOB.id) is None
    watched.see(50, *pair)
    assert find_stalled_run(watched.track, HANGS, JOB.id) is None
    watched.see(10, *pair)
    found = find_stalled_run(watched.track, HANGS, JOB.id)
    assert (found.job, found.since) == (JOB.id, at(600))
    assert found.why
    watched.see(10, before, before)
    assert find_stalled_run(watched.track, HANGS, JOB.id) is None


@pytest.mark.parametrize(
    ("doing", "shown"),
    [
        (JobNodeActivity(ranks=1, asleep=1), "1 asleep"),
        (JobNodeActivity(ranks=1, waiting=1), "1 waiting"),
        (JobNodeActivity(ranks=1, spinning=1), None),
        (JobNodeActivity(ranks=1, asleep=1, gpu_busy=0.5, gpu_w=150.0), None),
        (JobNodeActivity(ranks=1, asleep=1, traffic=1.0), None),
        (JobNodeActivity(), None),
        (None, None),
    ],
)
def test_one_process_that_never_worked_is_shown_from_its_first_look_on(doing, shown):
    watched = Watched(job=replace(JOB, nodes=("n1",)))
    watched.see(120, doing)
    found = find_stalled_run(watched.track, HANGS, JOB.id)
    assert (found and (found.since, found.why)) == (shown and (at(0), shown))
    assert watched.track.hang is None


def test_time_in_which_a_node_is_not_heard_is_no_standstill():
    watched = Watched()
    watched.see(600, WORK)
    watched.see(40, IDLE, IDLE)
    watched.see(600, IDLE, None)
    assert find_stalled_run(watched.track, HANGS, JOB.id) is None
    watched.see(20, IDLE, IDLE)
    assert find_stalled_run(watched.track, HANGS, JOB.id).since == at(1200)


@pytest.mark.parametrize(
    ("before", "pair", "node"),
    [
        (WORK, (WAITS, WAITS), None),
        (WORK, (WAITS, JobNodeActivity(ranks=8, waiting=7, spinning=1)), "n2"),
        (WORK, (JobNodeActivity(ranks=8, waiting=7, blocked=1), WAITS), "n1"),
        (WORK, (WAITS, JobNodeActivity()), None),
        (TRAINS, (POLLS, POLLS), None),
        (TRAINS, (POLLS, DEAD), "n2"),
        (TRAINS, (DEAD, replace(DEAD, blocked=1)), "n2"),
    ],
)
def test_a_run_without_progress_hangs_after_two_minutes(before, pair, node):
    watched = Watched()
    watched.see(600, before, before)
    assert watched.see(900, *pair) == 120
    assert (watched.track.hang.node, watched.see(10, *pair)) == (node, 10)
    assert watched.see(10, before, before) is None


@pytest.mark.parametrize(
    ("before", "pair"),
    [
        (WORK, (WAITS, JobNodeActivity(ranks=8, waiting=7, working=1))),
        (WORK, (WAITS, JobNodeActivity(ranks=8, waiting=8, traffic=1))), (WORK, (IDLE, IDLE)),
        (WORK, (WAITS, None)), (WORK, (JobNodeActivity(ranks=1, waiting=1), JobNodeActivity())),
        (TRAINS, (POLLS, COMPUTES)), (TRAINS, (DEAD, DEAD)), (POLLS, (POLLS, POLLS)),
    ],
)  # fmt: skip
def test_what_is_no_hang_however_long_it_lasts(before, pair):
    watched = Watched()
    watched.see(600, before, before)
    assert watched.see(7200, *pair) is None


def test_the_pauses_of_a_run_are_learned_up_to_the_cap_or_what_it_survived(run):
    assert run.see(100, WAITS, WAITS) is None
    run.see(60, WORK)
    assert run.see(290, WAITS, WAITS) is None
    run.see(60, WORK)
    assert run.see(9000, WAITS, WAITS) == 930
    run.see(9000 - 940, WAITS, WAITS)
    run.see(60, WORK)
    assert run.see(9000, WAITS, WAITS) == 1800
    assert "its longest pause before was 9" in run.track.hang.why


def test_before_its_work_was_seen_a_run_has_longer():
    assert Watched().see(9000, WAITS, WAITS) == 1800


ONCE, LASTS = replace(WAITS, traffic=0.5), replace(WAITS, traffic=1.0)


def test_traffic_of_one_sample_delays_a_hang_by_one_look_and_teaches_nothing(run):
    assert run.see(110, WAITS, ONCE) is None
    assert run.see(20, ONCE, WAITS) == 20
    assert run.see(10, ONCE, ONCE) == 10
    assert run.track.longest_s == 0


def test_traffic_that_lasts_is_no_hang_but_teaches_only_once_a_rank_works(run):
    assert run.see(110, WAITS, WAITS) is None
    run.see(10, WAITS, ONCE)
    assert run.see(3600, WAITS, LASTS) is None
    assert run.see(900, WAITS, WAITS) == 120
    assert run.track.longest_s == 0
    run.see(10, WORK)
    assert run.track.longest_s == 140


@pytest.mark.parametrize("seed", range(5))
def test_the_traffic_of_a_large_cluster_hides_no_hang(run, seed):
    # One sample an hour on each of 256 nodes.
    dice = random.Random(seed)
    took = 0
    while not run.track.hang:
        several = any(dice.random() < 1 / 360 for _ in range(256))
        run.see(10, WAITS, ONCE if several else WAITS)
        took += 10
    assert took <= 130


def test_another_run_or_a_suspended_one_is_counted_from_zero(run):
    run.see(100, WAITS, WAITS)
    run.job = replace(JOB, state="SUSPENDED")
    run.see(600, WAITS, WAITS)
    run.job = JOB
    assert run.see(110, WAITS, WAITS) is None
    run.job = replace(JOB, restarts=1)
    assert run.see(1700, WAITS, WAITS) is None


def test_a_time_in_which_no_one_looked_counts_for_nothing(run):
    run.see(110, WAITS, WAITS)
    run.now += 600
    assert run.see(110, WAITS, WAITS) is None


def test_a_node_tells_of_the_jobs_that_slurm_has_put_there_alone():
    watch, policy = HangDetector(), replace(HANGS, floor_s=60.0, start_s=60.0)
    view = view_of(jobs=[replace(JOB, nodes=("n1",))]).scheduler
    for second in range(0, 200, 10):
        watch.hear(
            generation("n1"),
            {"jobs": 1.0, "job.7.ranks": 8.0, "job.7.working": 1.0, "gpu.busy": 1.0},
        )
        watch.hear(generation("n9"), {"jobs": 1.0, "job.7.ranks": 8.0, "job.7.waiting": 8.0})
        assert watch.look(view, at(second), policy) == {}
    for second in range(200, 300, 10):
        watch.hear(generation("n1"), {"jobs": 1.0, "job.7.ranks": 8.0, "job.7.waiting": 8.0})
        watch.hear(generation("n9"), {"jobs": 1.0, "job.7.ranks": 8.0, "job.7.working": 8.0})
        found = watch.look(view, at(second), policy)
    assert list(found) == [7]


def test_of_several_samples_the_work_counts_and_strange_names_do_not():
    said = merge_node_activity_samples([
        {"job.7.ranks": 2.0, "job.7.working": 1.0}, {"job.7.ranks": 2.0, "job.7.waiting": 2.0},
        {"job..ranks": 1.0, "job.x.ranks": 1.0, "job.7.name": 1.0, "job.7.ranks.x": 9.0},
    ])  # fmt: skip
    assert said.get(7) == JobNodeActivity(ranks=2.0, working=1.0, waiting=2.0)
    assert said.get(8) is None
    assert merge_node_activity_samples([{"jobs": 0.0}]).get(8) == JobNodeActivity()


HANG = JobHang(at(-130), "no process of it has made progress", "n1")


def decided(job=JOB, *, hang=HANG, mode=OperatingMode.OWN, log=(), **hangs):
    policy = replace(OWN, mode=mode, hangs=replace(HANGS, **hangs))
    view = view_of(jobs=[job], log=log, ruled={job.id: EffectiveJobPolicy()}, hangs={job.id: hang})
    found = unflawed(plan_failed_run_recoveries(view, policy, (), at(0)))
    assert len(found) == 1
    return found[0]


def test_by_default_its_owner_is_notified_and_nothing_is_done():
    found = decided()
    assert isinstance(found, GateBlocked)
    assert (found.gate, found.target) == ("hang", "7")
    assert "no process of it" in found.why


@pytest.mark.parametrize(
    ("job", "hang", "whose"),
    [
        (JOB, replace(HANG, other="HyperPod's hung-job agent"), "HyperPod"),
        (replace(JOB, comment='hpctl:{"supervised":true}'), HANG, "supervisor"),
    ],
)
def test_only_one_tool_treats_a_job_at_a_time(job, hang, whose):
    found = decided(job, hang=hang, action="cancel")
    assert (found.gate, whose in found.why) == ("hang_of_others", True)


@pytest.mark.parametrize("action", ["dump", "requeue", "cancel"])
def test_a_partition_has_its_own_action_and_gates_apply(action):
    found = decided(partitions={"all": action})
    assert isinstance(found, JobRecoveryOpened)
    assert (found.hang, found.trouble.kind, found.trouble.node) == (action, "hang", "n1")
    held = decided(action=action, mode=OperatingMode.OBSERVE)
    assert (held.gate, "mode observe" in held.why) == ("observing", True)


def test_a_job_that_cannot_run_again_is_not_requeued():
    assert decided(replace(JOB, requeue=False), action="requeue").gate == "not_recoverable"
    assert decided(replace(JOB, requeue=False), action="cancel").hang == "cancel"


def after(hang, *steps, hangs=True, works=False, state="RUNNING", seconds=1.0):
    rec = JobRecovery(
        "j-1",
        JobAttempt(7, JOB.submit, 0),
        "",
        (),
        at(0),
        JobRecoveryPhase.HIT,
        at(0),
        hang=hang,
        steps=steps,
    )
    facts = JobRecoveryFacts(replace(JOB, state=state), cordoned=True, hangs=hangs, works=works)
    return advance.advance_job_recovery(rec, facts, OWN, at(seconds))


def step(kind, outcome=None):
    return RecoveryStepRecord(kind, 1, "7", at(0), outcome, at(1) if outcome else None)


STACKS = step(StepKind.STACKS, Outcome.accepted())
FAILED = step(StepKind.STACKS, Outcome.rejected("no_answer"))
KILL = step(StepKind.SIGNAL, Outcome.accepted())


def test_its_stacks_come_first_and_are_not_waited_for_without_end():
    for hang in ("dump", "requeue", "cancel"):
        first = after(hang)
        assert isinstance(first, StepStartDecision)
        assert (first.kind, first.target) == (StepKind.STACKS, "7")
        assert isinstance(after(hang, step(StepKind.STACKS)), WaitDecision)
        assert not isinstance(after(hang, step(StepKind.STACKS), seconds=91.0), WaitDecision)


def test_then_it_is_left_requeued_or_ended():
    assert after("dump", STACKS).signal is JobRecoverySignal.CALLED_OFF
    assert "could not" in after("dump", FAILED).why
    assert after("requeue", FAILED).signal is JobRecoverySignal.STOP_WANTED
    kill = after("cancel", STACKS)
    assert (kill.kind, kill.target) == (StepKind.SIGNAL, "KILL")
    assert isinstance(after("cancel", STACKS, KILL), WaitDecision)
    assert after("cancel", STACKS, KILL, state="FAILED").signal is JobRecoverySignal.ENDED


@pytest.mark.parametrize("hang", ["dump", "requeue", "cancel"])
def test_what_works_again_is_left_alone(hang):
    found = after(hang, STACKS, hangs=False, works=True)
    assert isinstance(found, RecoveryPhaseMove)
    assert found.signal is JobRecoverySignal.CALLED_OFF


@pytest.mark.parametrize("hang", ["dump", "requeue", "cancel"])
def test_what_was_not_watched_since_a_restart_is_waited_for(hang):
    found = after(hang, STACKS, hangs=False, seconds=899.0)
    assert isinstance(found, WaitDecision)
    assert "not known yet" in found.why
    assert after(hang, STACKS, hangs=False, seconds=901.0).signal is JobRecoverySignal.CALLED_OFF


OPENED = JobRecoveryOpened(
    at(-10), "j-1", JOB.attempt, "", (), "it hangs", "train", "anna", "all", hang="requeue"
)


def test_a_restart_does_not_call_a_treatment_off_and_finds_the_hang_soon():
    watch, view = HangDetector(), view_of(jobs=[JOB], log=[OPENED])

    def facts(second, gauges):
        for node in JOB.nodes:
            watch.hear(generation(node), {"jobs": 1.0, "job.7.ranks": 8.0, **gauges})
        hangs = watch.look(view.scheduler, at(second), HANGS, view.state)
        seen = replace(view, hangs=hangs, worked=watch.last_worked)
        found = collect_job_recovery_facts(view.state.jobs["j-1"], seen, OWN)
        return found.hangs, found.works

    waits = {facts(second, {"job.7.waiting": 8.0}) for second in range(0, 120, 10)}
    assert waits == {(False, False)}
    assert facts(120, {"job.7.waiting": 8.0}) == (True, False)
    assert facts(130, {"job.7.working": 1.0}) == (False, True)


def test_one_that_was_called_off_was_not_tried():
    off = SignalSeen(at(-5), "j-1", JobRecoverySignal.CALLED_OFF, "it works again by itself")
    asked = StepStarted(at(-9), "j-1", StepKind.STACKS, 1, "7")
    assert isinstance(decided(action="requeue", log=[OPENED, asked, off]), JobRecoveryOpened)
    dumped = decided(action="dump", log=[replace(OPENED, hang="dump"), asked, off])
    assert "was tried" in dumped.why


@pytest.mark.parametrize(("start", "found"), [(-300, True), (-5, False), (None, False)])
def test_a_run_that_is_held_for_its_hang_is_known_to_hang(start, found):
    job = replace(JOB, start=None if start is None else at(start))
    state = replay_events([GateBlocked(at(-10), "7", "hang", "it hangs", HUNG)])
    assert is_run_known_to_hang(job, state) is found


GROUP = "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"


class Node:
    """A /proc with the processes that a test puts there."""

    def __init__(self, root):
        self.root, self.now, self.sweep = root, 0.0, nvml.NvmlSnapshot(0.0)
        activity.clear_job_sample_history()
        (root / "proc").mkdir()

    def put(self, pid, cpu=1000, *, state="S", faults=0, io=0, switches=0, child=0, wchan="0",
            group=GROUP, environ=b"A=1\0"):  # fmt: skip
        folder = self.root / "proc" / str(pid)
        folder.mkdir(exist_ok=True)
        rest = [state, "1", *["0"] * 5, str(faults), "0", "0", "0", str(cpu), "0", str(child), "0"]
        rest += ["0"] * 4 + ["4711", "0", "0"]
        for name, text in {
            "stat": f"{pid} (py) (x) {' '.join(rest)}", "cgroup": group, "wchan": wchan,
            "io": f"rchar: {io}\nwchar: 0\n", "cmdline": "python",
            "status": f"voluntary_ctxt_switches:\t{switches}\n",
        }.items():  # fmt: skip
            (folder / name).write_text(text)
        (folder / "environ").write_bytes(environ)

    def look(self):
        self.now += 10
        machine = CheckedMachine(self.root, nvml=lambda: self.sweep, monotonic=lambda: self.now)
        return activity.sample_job_processes(machine)

    def counted(self, **changes):
        """What is said of a process of job 7 that changes so within 10 s."""
        self.put(40)
        before = self.look()
        self.put(40, **{"cpu": 1000, **changes})
        return activity.compute_job_activity_gauges(self.look(), before)


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"io": 700_000}, "working"),
        ({"faults": 120}, "working"),
        ({"cpu": 1300, "switches": 60}, "working"),
        ({"cpu": 2900}, "working"),
        ({"child": 300}, "working"),
        ({"cpu": 1900}, "spinning"),
        ({"state": "R"}, "spinning"),
        ({"state": "D"}, "blocked"),
        ({"wchan": "futex_do_wait", "io": 600, "faults": 20}, "waiting"),
        ({"wchan": "hrtimer_nanosleep", "switches": 1000}, "asleep"),
    ],
)
def test_what_a_process_does(node, changes, what):
    ranks = {} if what == "working" else {"job.7.ranks": 1.0}
    assert node.counted(**changes) == {"jobs": 1.0, f"job.7.{what}": 1.0, **ranks}


def test_a_name_in_a_users_own_slice_is_no_job(node):
    mine = "0::/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_7/step_0"
    node.put(40)
    node.put(41, group=mine, io=10**9)
    assert [key[0] for key in node.look().processes] == [40]


def test_another_hung_job_agent_shows_in_the_environment_of_the_job_alone(node):
    node.put(41, group=GROUP.replace("job_7", "job_8"), environ=b"A=1\0HYPERPOD_HANG_RULES=/x\0")
    found = node.counted()
    assert found["job.8.other"] == 1.0
    assert "job.7.other" not in found


def test_a_helper_of_hpctl_is_none_of_the_processes_that_a_run_waits_for(node):
    node.put(41, environ=b"A=1\0HPCTL_HELPER=fast\0")
    node.look()
    node.put(41, io=10**9, environ=b"A=1\0HPCTL_HELPER=fast\0")
    assert "job.7.working" not in node.counted()


def test_one_that_works_but_is_no_rank_counts_as_traffic(node):
    node.put(41, cpu=20)
    before = node.look()
    for n, found in ((1, 0.5), (2, 1.0), (3, 1.0)):
        node.put(41, cpu=20, io=n * 700_000)
        seen = node.look()
        assert activity.compute_job_activity_gauges(seen, before) == {
            "jobs": 1.0,
            "job.7.traffic": found,
        }
        before = seen


def test_a_shell_does_not_work_by_what_its_children_read(node):
    node.put(41, cpu=20)
    (node.root / "proc/41/exe").symlink_to("/usr/bin/bash")
    before = node.look()
    node.put(41, cpu=220, io=10**7, faults=2000)
    seen = node.look()
    assert activity.compute_job_activity_gauges(seen, before) == {"jobs": 0.0}
    (node.root / "proc/41/exe").unlink()
    (node.root / "proc/41/exe").symlink_to("/usr/bin/python3.11")
    assert activity.compute_job_activity_gauges(node.look(), seen)["job.7.working"] == 1.0


def test_a_jobs_gpus_are_those_that_its_processes_are_on(node):
    gpus = [nvml.GpuState(n, utilization=100, power_mw=190_000 * (n + 1),
                          processes=(nvml.GpuProcess(pid),))
            for n, pid in enumerate((40, 99))]  # fmt: skip
    node.sweep = nvml.NvmlSnapshot(0.0, tuple(gpus))
    found = node.counted()
    assert (found["job.7.gpu_busy"], found["job.7.gpu_w"]) == (1.0, 190.0)


def test_traffic_counts_where_one_job_has_the_node(node):
    def moved(amount):
        folder = node.root / "proc/net"
        folder.mkdir(exist_ok=True)
        card = f"  eth0: {amount} 0 0 0 0 0 0 0 {amount} 0\n    lo: 9{amount} 0 0 0 0 0 0 0 0 0\n"
        (folder / "dev").write_text("a\nb\n" + card)

    moved(0)
    node.put(40)
    before = node.look()
    for amount, found in ((1, 0.5), (2, 1.0), (3, 1.0), (3, None), (4, 0.5)):
        moved(amount * 10**8)
        seen = node.look()
        assert activity.compute_job_activity_gauges(seen, before).get("job.7.traffic") == found
        before = seen
    node.put(41, group=GROUP.replace("job_7", "job_8"))
    before = node.look()
    moved(10**9)
    assert "job.7.traffic" not in activity.compute_job_activity_gauges(node.look(), before)


def test_whose_processes_are_too_many_hides_that_job_alone(node, monkeypatch):
    monkeypatch.setattr(activity, "MOST_PROCESSES", 3)
    for pid in range(10, 20):
        node.put(pid, cpu=0, group=GROUP.replace("job_7", "job_8"))
    found = node.counted(io=700_000)
    assert (found["jobs"], found["job.7.working"], found["job.8.working"]) == (2.0, 1.0, 1.0)
    assert "job.8.working" in node.counted(), "they are not looked at again each time"
    assert len(node.look().processes) == 4
    for pid in range(12, 20):
        shutil.rmtree(node.root / "proc" / str(pid))
    assert "job.8.working" not in node.counted()


def test_what_does_not_fit_into_a_report_is_said_to_be_left_out(node):
    for pid in range(40, 80):
        node.put(pid, group=GROUP.replace("job_7", f"job_{pid}"))
    found = activity.compute_job_activity_gauges(node.look(), replace(node.look(), at=0.0))
    assert "jobs" not in found
    assert 30 < len(found) <= activity.MOST_NUMBERS + 1


def test_eight_jobs_that_train_fit_and_of_more_each_has_its_turn(node):
    def put(jobs, io):
        for n in range(jobs):
            group = GROUP.replace("job_7", f"job_{n + 1}")
            node.put(40 + n, io=io, group=group)
            node.put(80 + n, wchan="futex_do_wait", group=group)
            node.put(120 + n, group=group)
        gpus = [nvml.GpuState(n, utilization=90, power_mw=600_000,
                              processes=(nvml.GpuProcess(40 + n),))
                for n in range(jobs)]  # fmt: skip
        node.sweep = nvml.NvmlSnapshot(0.0, tuple(gpus))
        return node.look()

    before = put(8, 0)
    found = activity.compute_job_activity_gauges(put(8, 10**6), before)
    assert (found["jobs"], len(found)) == (8.0, 25)
    named = set()
    before = put(16, 0)
    for _ in range(16):
        seen = put(16, 0)
        found, before = activity.compute_job_activity_gauges(seen, before), seen
        assert "jobs" not in found
        named |= {name.split(".")[1] for name in found}
    assert len(named) == 16


def test_a_running_job_without_nodes_is_no_error():
    job = slurm_job(nodes=())
    track = update_job_hang_history(job, {}, None, JobHangPolicy(), at(0))
    assert update_job_hang_history(job, {}, track, JobHangPolicy(), at(9)).hang is None
