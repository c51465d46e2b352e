"""What a Slurm's release and configuration mean for recovery: the rules of `hpctl doctor`.

Pure: a version and `scontrol show config` in, findings out. Each rule looks at one setting.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from msgspec import Struct

from hpctl.core.trouble import STOP_EXIT_CODE

Version = tuple[int, int, int]
Config = Mapping[str, str]
Severity = Literal["fail", "warn", "note"]


class Hazard(Struct, frozen=True):
    """One finding. `fail` breaks recovery, `warn` slows or weakens it, `note` is good to know."""

    rule: str
    severity: Severity
    what: str
    mend: str
    source: str


class _Slurm(Struct, frozen=True):
    version: Version
    config: Config
    files: Mapping[str, str] | None


Rule = Callable[[_Slurm], Iterator[Hazard]]


TOPOLOGY = ("topology.conf", "topology.yaml")


def hazards(
    version: Version, config: Config, files: Mapping[str, str] | None = None
) -> list[Hazard]:
    """All findings for this release under this configuration, the worst first.

    `files` are those of TOPOLOGY that lie beside slurm.conf, None where that is not known.
    """
    found = [hazard for rule in RULES for hazard in rule(_Slurm(version, config, files))]
    return sorted(found, key=lambda hazard: ("fail", "warn", "note").index(hazard.severity))


def _begin_delay(slurm: _Slurm) -> Iterator[Hazard]:
    delay = (
        _option(slurm.config, "SchedulerParameters", "requeue_delay")
        if slurm.version >= (25, 11)
        else None
    )
    expire = _option(slurm.config, "AuthInfo", "cred_expire")
    seconds = _int(delay or expire or "", 120)
    where = "SchedulerParameters=requeue_delay" if delay else "AuthInfo=cred_expire"
    if seconds > 120:
        yield Hazard(
            "begin-delay",
            "warn",
            f"a requeued job waits {seconds + 1} s whenever hpctl cannot clear the delay ({where})",
            f"lower {where} to 120 or less"
            + ("; it is read once: restart slurmctld" if delay else ""),
            "slurmctld/job_mgr.c batch_requeue_fini, common/slurm_cred cred_expiration",
        )


def _batch_sched_delay(slurm: _Slurm) -> Iterator[Hazard]:
    seconds = _int(_option(slurm.config, "SchedulerParameters", "batch_sched_delay") or "", 3)
    if seconds > 0:
        yield Hazard(
            "batch-sched-delay",
            "note",
            f"a restarted job may wait up to {seconds} s for slurmctld to look at it: the drain"
            " before it counts as a look (batch_sched_delay)",
            "add batch_sched_delay=0 to SchedulerParameters, unless jobs are submitted by the"
            " thousand a minute",
            "slurmctld/controller.c _slurmctld_background; seen on 22.05.8",
        )


def _return_to_service(slurm: _Slurm) -> Iterator[Hazard]:
    value = _int(slurm.config.get("ReturnToService", ""), 0)
    if value == 2:
        yield Hazard(
            "return-to-service",
            "note",
            "ReturnToService=2: a DOWN node is IDLE as soon as its slurmd registers",
            "nothing: hpctl drains before it sets DOWN; never set a sick node only DOWN by hand",
            "slurm.conf(5) ReturnToService",
        )


def _slurmd_timeout(slurm: _Slurm) -> Iterator[Hazard]:
    seconds = _int(slurm.config.get("SlurmdTimeout", ""), 300)
    source = "slurm.conf(5) SlurmdTimeout"
    if seconds == 0:
        yield Hazard(
            "slurmd-timeout",
            "warn",
            "SlurmdTimeout=0: slurmctld never finds out by itself that a node is dead",
            "set SlurmdTimeout to 60-300: it is what remains when hpctl is not running",
            source,
        )
    elif seconds > 300:
        yield Hazard(
            "slurmd-timeout",
            "warn",
            f"SlurmdTimeout={seconds}: a dead node holds its jobs that long when hpctl is away",
            "set SlurmdTimeout to 300 or less",
            source,
        )


def _kill_wait(slurm: _Slurm) -> Iterator[Hazard]:
    seconds = _int(slurm.config.get("KillWait", ""), 30)
    if seconds > 60:
        yield Hazard(
            "kill-wait",
            "warn",
            f"KillWait={seconds}: a job that ignores SIGTERM holds its nodes that long",
            "set KillWait to 30; checkpoint on a signal of your own (sbatch --signal) instead",
            "slurm.conf(5) KillWait",
        )


def _unkillable(slurm: _Slurm) -> Iterator[Hazard]:
    limit = _int(slurm.config.get("UnkillableStepTimeout", ""), 60)
    floor = 5 * _int(slurm.config.get("MessageTimeout", ""), 10)
    if limit < floor:
        yield Hazard(
            "unkillable-step",
            "warn",
            f"UnkillableStepTimeout={limit} is below five times MessageTimeout ({floor}):"
            " healthy nodes get drained as 'Kill task failed'",
            f"set UnkillableStepTimeout to {floor} or more",
            "slurm.conf(5) UnkillableStepTimeout",
        )
    if limit > 600:
        yield Hazard(
            "unkillable-step",
            "warn",
            f"UnkillableStepTimeout={limit}: a job with a process in the driver stays COMPLETING"
            " that long, and cannot be requeued before",
            "set UnkillableStepTimeout to 60-180",
            "slurm.conf(5) UnkillableStepTimeout",
        )


def _job_requeue(slurm: _Slurm) -> Iterator[Hazard]:
    if slurm.config.get("JobRequeue", "1") in ("0", "NO", "no"):
        yield Hazard(
            "job-requeue",
            "fail",
            "JobRequeue=0: jobs that do not say --requeue cannot be run again",
            "set JobRequeue=1, or submit with --requeue (hpctl sbatch does)",
            "slurm.conf(5) JobRequeue",
        )


def _max_batch_requeue(slurm: _Slurm) -> Iterator[Hazard]:
    if slurm.version < (23, 2, 0):
        return
    value = _int(slurm.config.get("MaxBatchRequeue", ""), 5)
    if value < 3:
        yield Hazard(
            "max-batch-requeue",
            "warn",
            f"MaxBatchRequeue={value}: launch, prolog and resume failures hold a job that soon"
            " (JobHeldMaxRequeue), and hpctl does not release it",
            "set MaxBatchRequeue to 5 or more",
            "slurm.conf(5) MaxBatchRequeue",
        )


def _rate_limit(slurm: _Slurm) -> Iterator[Hazard]:
    if _option(slurm.config, "SlurmctldParameters", "rl_enable") is not None:
        yield Hazard(
            "rate-limit",
            "note",
            "rl_enable: RPCs of ordinary users are limited; root and SlurmUser are not",
            "run the daemon as root or SlurmUser",
            "slurm.conf(5) SlurmctldParameters rl_enable",
        )


def _expansion(slurm: _Slurm) -> Iterator[Hazard]:
    if _option(slurm.config, "SchedulerParameters", "permit_job_expansion") is None:
        return
    crash = slurm.version >= (25, 11, 0)
    what = "permit_job_expansion is on"
    if crash:
        what += ": merging a job into one without licences crashes slurmctld of this release"
    yield Hazard(
        "job-expansion",
        "fail" if crash else "note",
        what,
        "remove permit_job_expansion; hpctl never expands a job",
        "slurmctld/job_mgr.c _valid_license_job_expansion; seen on 25.11.7",
    )


def _expedited(slurm: _Slurm) -> Iterator[Hazard]:
    option = _option(slurm.config, "SlurmctldParameters", "enable_expedited_requeue")
    source = "slurm.conf(5) SlurmctldParameters enable_expedited_requeue"
    if slurm.version >= (25, 11, 0) and option is None:
        yield Hazard(
            "expedited-requeue",
            "note",
            "this release has expedited requeue, and it is off",
            "add enable_expedited_requeue to SlurmctldParameters: a job submitted with"
            " --requeue=expedite keeps its place and its surviving nodes",
            source,
        )
    if slurm.version < (25, 11, 0) and option is not None:
        yield Hazard(
            "expedited-requeue",
            "note",
            "enable_expedited_requeue does nothing before 25.11",
            "remove it, or upgrade",
            source,
        )
    if (25, 11, 0) <= slurm.version < (25, 11, 3) and option is not None:
        yield Hazard(
            "expedited-requeue",
            "warn",
            "before 25.11.3 an expedited job that exits 0 is handled as if it had failed",
            "upgrade to 25.11.3 or later",
            "Slurm's CHANGELOG for 25.11.3",
        )


def _requeue_exit(slurm: _Slurm) -> Iterator[Hazard]:
    for key in ("RequeueExit", "RequeueExitHold"):
        if STOP_EXIT_CODE in _exit_codes(slurm.config.get(key, "")):
            yield Hazard(
                "requeue-exit",
                "fail",
                f"{key} has {STOP_EXIT_CODE}, by which a job says that it must not run again",
                f"take {STOP_EXIT_CODE} out of {key}",
                "slurm.conf(5) RequeueExit",
            )


def _requeue_completing(slurm: _Slurm) -> Iterator[Hazard]:
    if slurm.version < (26, 5, 4):
        crash = slurm.version >= (23, 2, 0)
        yield Hazard(
            "requeue-completing",
            "note",
            "`scontrol requeue` of a COMPLETING job "
            + ("can crash slurmctld" if crash else "corrupts node counters")
            + " (fixed in 26.05.4)",
            "nothing for hpctl, which waits until COMPLETING has cleared; tell your users"
            " and other tools to wait as well",
            "Slurm commits c7c7833298 and eb49e6dd78; seen on 24.11.5 and 25.11.7",
        )


def _accounting(slurm: _Slurm) -> Iterator[Hazard]:
    storage = slurm.config.get("AccountingStorageType", "")
    if not storage or storage.endswith("/none"):
        return
    flags = {f.strip().lower() for f in slurm.config.get("AccountingStoreFlags", "").split(",")}
    if "job_comment" not in flags:
        yield Hazard(
            "accounting-store-flags",
            "note",
            "AccountingStoreFlags lacks job_comment: why hpctl held a job is not in sacct",
            "add job_comment (and job_extra, job_script where wanted) to AccountingStoreFlags",
            "slurm.conf(5) AccountingStoreFlags",
        )


def _min_job_age(slurm: _Slurm) -> Iterator[Hazard]:
    seconds = _int(slurm.config.get("MinJobAge", ""), 300)
    if seconds < 120:
        yield Hazard(
            "min-job-age",
            "warn" if seconds else "note",
            f"MinJobAge={seconds}: a failed job is forgotten before it can be requeued"
            if seconds
            else "MinJobAge=0: ended jobs are never purged, and slurmctld grows",
            "set MinJobAge to 300",
            "slurm.conf(5) MinJobAge",
        )


def _batch_license(slurm: _Slurm) -> Iterator[Hazard]:
    if (25, 5, 0) <= slurm.version < (25, 11, 7) and slurm.config.get("Licenses", ""):
        yield Hazard(
            "requeue-licenses",
            "warn",
            "this release loses a job's licence requests when it is requeued",
            "upgrade to 25.11.7 or later",
            "Slurm commit 'Rebuild license list after requeue'",
        )


def _topology(slurm: _Slurm) -> Iterator[Hazard]:
    """HyperPod's cluster agent writes these files, and has left out either."""
    source = "aws-samples/sample-physical-ai-scaffolding-kit#"
    plugin = slurm.config.get("TopologyPlugin", "").rpartition("/")[2].lower()
    known = TOPOLOGY if slurm.version >= (25, 5, 0) else TOPOLOGY[:1]
    files = slurm.files
    if files is not None and plugin in ("tree", "block") and not any(f in files for f in known):
        yield Hazard(
            "topology-file",
            "fail",
            f"TopologyPlugin={plugin} and no {' or '.join(known)} beside slurm.conf:"
            " every sbatch is rejected",
            "restore the file and run `scontrol reconfigure`, or set TopologyPlugin=topology/flat",
            source + "14",
        )
    text = (files or {}).get("topology.yaml")
    if slurm.version >= (25, 5, 0) and text is not None and not _yaml_says(text):
        yield Hazard(
            "topology-empty",
            "fail" if slurm.version >= (25, 11, 0) else "warn",
            "topology.yaml beside slurm.conf is empty: slurmctld 25.11 dies of it at every start",
            "remove the file, or write the topology into it, before slurmctld is restarted",
            source + "23",
        )


def _yaml_says(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    return any(line and not line.startswith("#") and line not in ("---", "[]") for line in lines)


RULES: tuple[Rule, ...] = (
    _begin_delay, _batch_sched_delay, _return_to_service, _slurmd_timeout, _kill_wait, _unkillable,
    _job_requeue, _max_batch_requeue, _rate_limit, _expansion, _expedited, _requeue_exit,
    _requeue_completing, _accounting, _min_job_age, _batch_license,
    _topology,
)  # fmt: skip


def _option(config: Config, key: str, name: str) -> str | None:
    """A `name` or `name=value` in a comma-separated setting: its value, "" or None."""
    for word in config.get(key, "").split(","):
        option, _, value = word.strip().partition("=")
        if option.lower() == name:
            return value
    return None


def _int(text: str, default: int) -> int:
    """The number that a setting begins with (`300 sec`), or the default."""
    match = re.match(r"\s*(\d+)", text)
    return int(match[1]) if match else default


def _exit_codes(text: str) -> set[int]:
    """The codes of a RequeueExit list such as `1-9,93`."""
    codes: set[int] = set()
    for item in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", item)
        if match:
            codes.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return codes
