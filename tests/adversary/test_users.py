"""What a user may write about a job of his own stops nobody and speaks for nobody else."""

import json

import pytest

from tests.adversary.bed import STRANGER, Siege, attack
from tests.live import until

pytestmark = [
    pytest.mark.adversary,
    pytest.mark.integration,
    pytest.mark.slurm,
    pytest.mark.timeout(300),
]


def comment(policy, **more) -> str:
    return "--comment=hpctl:" + json.dumps({"policy": policy, **more})


def forged(state: str = "RUNNING", user: str = "root(0)") -> str:
    """A name that goes on as the rest of a record of scontrol's."""
    return (
        f"x UserId={user} GroupId=root(0) MCS_label=N/A Priority=1 Nice=0 Account=(null)"
        f" QOS=(null) JobState={state} Reason=None Dependency=(null) Requeue=1 Restarts=9"
        " BatchFlag=1 Reboot=0 ExitCode=0:0 RunTime=01:00:00 TimeLimit=02:00:00"
        " StartTime=2026-01-01T00:00:00 EndTime=2026-01-01T02:00:00 Partition=dev"
        " NodeList=ip-127-0-1-[1-8] BatchHost=ip-127-0-1-1 NumNodes=8 Comment=hpctl:{}"
    )


ENDLESS_BACKOFF = {
    "backoff": {"first_s": 1e300, "cap_s": 1e308},
    "on": {"crash": {"ladder": ["requeue"], "hold_same": False, "backoff": True}},
}
PENDING = ("--begin=now+9hours",)
"""It stands in the queue for as long as the tests last, and is read in each cycle."""

JOBS: dict[str, tuple[str | bytes, ...]] = {
    "it begins in year 9999": ("--begin=9999-12-31T23:00:00", "--time=3-0"),
    "it backs off for 1e300 seconds": (comment(ENDLESS_BACKOFF),),
    "a name in latin-1": (*PENDING, b"--job-name=caf\xe9"),
    "a name of bytes that are no text": (*PENDING, b"--job-name=\xff\xfe\x80\xc0\xaf"),
    "a name that is a record": (*PENDING, f"--job-name={forged()}"),
    "a name that is another record": (
        *PENDING,
        f"--job-name=x\n\nJobId=1 JobName={forged(user='alice(1667)')}\n",
    ),
    "a name that is an end of job and node": (*PENDING, f"--job-name={forged('NODE_FAIL')}"),
    "a name of a hundred thousand nodes": (*PENDING, "--job-name=x NodeList=a[1-99999]"),
    "a name that a terminal obeys": (
        *PENDING,
        "--job-name=\x1b]0;owned\x07\x1b[2J\x9b31m\u202egnp.exe",
    ),
    "a comment nested a hundred deep": (
        *PENDING,
        "--comment=hpctl:" + '{"a":' * 100 + "1" + "}" * 100,
    ),
    "a comment nested as deep as it may be long": (*PENDING, "--comment=hpctl:{" + "[" * 990),
    "numbers that are none": (
        '--comment=hpctl:{"policy":{"restarts":1e999,"window_s":NaN,"backoff":{"first_s":-Infinity,'
        '"cap_s":1e400}},"spares":1e999}',
    ),
    "numbers of four hundred digits": (
        '--comment=hpctl:{"policy":{"restarts":' + "9" * 400 + '},"spares":' + "9" * 400 + "}",
    ),
    "half a surrogate pair": (*PENDING, '--comment=hpctl:{"save_signal":"\\ud800","policy":{}}'),
    "words of every wrong type": (
        '--comment=hpctl:{"policy":{"restarts":[],"on":7,"nodes":"a[1-9]","backoff":null,'
        '"log_rules":{"a":1},"notify":"rm -rf /"},"save_signal":{"a":[]},"supervised":"yes"}',
    ),
    "the longest comment": (
        *PENDING,
        "--comment=hpctl:" + json.dumps({"policy": {"a": "b" * 950}}),
    ),
    "an account that is a record": (*PENDING, f"--account={forged()}"),
    "a log at a path that is none": (*PENDING, "--output=/tmp/\x1b[2J\n%j NodeList=ip-127-0-1-1"),
}
NAMES = sorted(JOBS)


class Words:
    """All the jobs at once, each at the end of a script that fails, and the bystander after."""

    def __init__(self, siege: Siege) -> None:
        self.siege = siege
        self.jobs: dict[str, int] = {}
        for name, options in JOBS.items():
            self.jobs[name] = siege.sbatch(*options, wrap="exit 1")
        array = (
            "--array=1-400",
            "--begin=now+9hours",
            "--job-name=x NodeList=b[1-99999],c[1-99999]",
        )
        self.array = siege.sbatch(*array)
        siege.treated |= set(range(self.array, self.array + 401))
        # What fails is treated, and fails again.
        until(lambda: bool(siege.live.of_job(self.failing)), 20, "a failed job is treated")
        self.healed_s = siege.heals()

    @property
    def failing(self) -> int:
        return self.jobs["words of every wrong type"]


@pytest.fixture(scope="module")
def words(siege: Siege) -> Words:
    return Words(siege)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_that_says(words: Words, name: str) -> None:
    """Slurm has it, hpctl sees it as what it is, nothing else is touched, and others are healed."""
    job = words.siege.job(words.jobs[name])
    assert job.uid == STRANGER.pw_uid
    if not job.running:
        assert job.state != "RUNNING"
    if PENDING[0] in JOBS[name]:
        assert (job.state, job.nodes, job.restarts) == ("PENDING", (), 0)
    words.siege.holds()


def test_names_are_no_jobs_record(words: Words) -> None:
    view = words.siege.live.scheduler.view()
    assert {str(n) for n in view.nodes} == set(words.siege.sandbox.nodes)
    assert {int(j) for j in view.jobs} <= words.siege.treated
    assert not [j for j in view.jobs.values() if j.user == "alice" or j.uid == 1667]
    named = {n for j in view.jobs.values() for n in j.nodes}
    assert named <= set(words.siege.sandbox.nodes)


@pytest.mark.parametrize("command", ["jobs", "status", "nodes", "recoveries"])
def test_no_terminal_obeys_what_users_wrote(words: Words, command: str) -> None:
    assert clean(words.siege.live.hpctl(command, check=False))


def test_nor_does_explain(words: Words) -> None:
    for name in ("a name that a terminal obeys", "words of every wrong type"):
        number = words.jobs[name]
        assert clean(words.siege.live.hpctl("explain", str(number), check=False))


def clean(text: str) -> bool:
    """Whether a terminal would print it all and obey nothing of it."""
    bad = [c for c in text if c != "\n" and (ord(c) < 32 or 127 <= ord(c) < 160)]
    return not bad and not set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def test_the_failing_and_backing_off_are_in_order(words: Words) -> None:
    """A second failure, where the delay is reckoned, comes and ends nothing."""
    number = words.jobs["it backs off for 1e300 seconds"]
    until(lambda: bool(words.siege.live.of_job(number)), 20, "it is treated")
    words.siege.stands()


def test_nothing_of_the_daemon_s_can_be_written(siege: Siege) -> None:
    state = siege.sandbox.state_dir
    munges = {str(siege.munge)} | {
        str(siege.sandbox.node_dir(n) / "munge.sock") for n in siege.sandbox.nodes
    }
    found = set(attack("writable", root=str(state)))
    devices = {path for path in found if "/dev/" in path}
    assert found - munges - devices == set()


def test_the_kill_switch_is_not_the_stranger_s(siege: Siege) -> None:
    switch = siege.sandbox.state_dir / "STOP"
    assert attack("write", path=str(switch), text="") == "PermissionError"
    assert not switch.exists()
    siege.holds()


def test_nothing_is_ordered_by_a_stranger(siege: Siege) -> None:
    """Neither by hpctl's commands nor by what they send."""
    body = json.dumps({"v": 1, "verb": "replace", "target": siege.sandbox.nodes[0], "by": "root"})
    output = attack(
        "posts", port=siege.port, path="/v1/requests", bodies=[body.encode().hex()],
        munge_socket=siege.munge,
    )  # fmt: skip
    assert [status for status, _ in output] == [403]
    siege.holds()


def test_killed_in_mid_recovery_it_continues_despite_all_of_this(words: Words) -> None:
    """Also what the strangers' words have left in Slurm and in the journal is read at the start."""
    siege, live = words.siege, words.siege.live
    job = live.start("sleep 600", "--time=10")
    siege.treated.add(job)
    (node,) = live.job(job).nodes
    siege.broken.add(str(node))
    live.xid(str(node))
    until(lambda: bool(live.of(str(node))), 20, "its recovery is open")
    siege.sandbox.kill_daemon()
    siege.sandbox.start_daemon()
    siege.restarted()
    until(lambda: live.running(job, 1), 30, "the job runs elsewhere")
    siege.sandbox.run(["scancel", str(job)])
    siege.stands()
