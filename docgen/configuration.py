"""docs/configuration.md: every key of hpctl.yaml, with its default from the code."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct

from hpctl.engine.config import Config

HEAD = """# hpctl.yaml

The daemon's configuration, `/etc/hpctl/hpctl.yaml` (`--config`, `HPCTL_CONFIG`). Every key has a
default; `hpctl config example` prints a file with all of them, `hpctl config show` the values in
effect, each with its file and line, `hpctl config check` reports every error at once,
`systemctl reload hpctl-daemon` applies a change. Keys that end in `_s` are seconds (`30`, `30s`,
`10m`, `2h`, `1d`). The agent's file is described under [checks](checks.md), recovery policies under
[policies](policies.md).

```yaml
mode: observe
cluster: {provider: sagemaker, name: llm-prod, region: us-west-2}
partitions: [gpu]
```
"""

MEANINGS = {
    "mode": "`observe`: journal only; `assist`: drain, requeue; `own`: also reset, reboot, replace",
    "state_dir": "journal and lock; a local disk",
    "database_url": "MariaDB or PostgreSQL that several head nodes share, in place of SQLite",
    "heads": "every head node's intake, as in the agents' `HPCTL_AGENT_HEAD`; empty: this one",
    "kill_switch": "while this file exists hpctl does nothing",
    "partitions": "act on nodes of these partitions only; empty: all",
    "spares": "idle healthy nodes kept for each instance group: `{GROUP: COUNT}`",
    "catalogue": "changed or added rules: `{RULE: {meaning, urgency, ladder, settle_s, "
    "escalate_window_s}}`",
    "run_policy": "the cluster's [recovery policy](policies.md)",
    "run_policies": "the same for each partition",
    "cluster.provider": "`sagemaker` (the default in a file with `cluster:`), or `none`: no cloud",
    "cluster.name": "the HyperPod cluster; needed with `sagemaker`",
    "cluster.region": "AWS region",
    "cluster.endpoint_url": "another SageMaker endpoint",
    "cluster.profile": "profile of SlurmUser's `~/.aws/config`",
    "cluster.poll_s": "interval of cloud reads",
    "cluster.busy_poll_s": "the same while a replacement or reboot is under way",
    "cluster.protected_groups": "instance groups that hpctl never treats",
    "slurm.bin": "directory of Slurm's commands; else PATH",
    "slurm.conf": "slurm.conf, where it is not the default",
    "slurm.adapter": "`cli`, `pyslurm`, or whichever is there",
    "slurm.timeout_s": "limit of one command",
    "intake.listen": "address and port for agents and requests",
    "intake.advertise": "this head's host:port as agents reach it; unset: host name and port",
    "intake.munge_socket": "another munged",
    "intake.allowed_uids": "uids whose reports about a node are believed",
    "access.group": "Unix group that may send requests, beside root",
    "alerts.token_file": "secret of Alertmanager's webhook; unset: closed",
    "alerts.labels": "labels that name a node, best first",
    "alerts.keep_s": "an alert not repeated for this long no longer counts",
    "page.listen": "address and port, or `unix:/PATH`, of the [page](page.md)",
    "page.token_file": "secret from which its links and sessions are made; needed on a port",
    "page.hosts": "names by which browsers reach it, beside this host's own",
    "metrics.agent_port": "the agents' port for Prometheus (`GET /sd`)",
    "loop.reconcile_s": "longest pause between cycles; interval of readings if capacity is sized",
    "loop.rest_s": "the same while slurmctld's log shows no change of a node or job",
    "loop.poll_s": "interval while Slurm is about to change",
    "loop.slow_poll_s": "interval while the cloud works",
    "loop.gather_s": "wait for other reports of one event",
    "loop.lease_s": "leader lease; unset: 30, and 3 where database_url is set",
    "journal.keep_days": "how long ended recoveries are kept",
    "journal.create": "the daemon begins a new journal where there is none; `false`: it refuses to"
    " start ([why](operations.md#an-absent-journal))",
    "notify.sinks": "`{NAME: FILE}`, see [notifications](notify.md)",
    "notify.routes": "`[{to, kinds, partitions, accounts}]`; none: all to all",
    "notify.users": "`mailprog` or a sink: tells job owners",
    "notify.quiet": "`HH:MM-HH:MM`, local time: only what needs a person",
    "notify.per_hour": "messages to a sink in an hour",
    "node.cordon_deadline_s": "until the node is drained",
    "node.disturb_after_s": "from opening until a job is stopped",
    "node.vacate_deadline_s": "until its jobs are gone",
    "node.vacate_after_jobs_deadline_s": "the same where jobs may finish",
    "node.remedy_after_s": "from opening until a reset, reboot or replacement",
    "node.reset_deadline_s": "until a GPU reset is done",
    "node.reboot_deadline_s": "until a reboot is done",
    "node.replace_deadline_s": "until a replacement is done",
    "node.rejoin_deadline_s": "until cloud, agent and slurmd agree",
    "node.verify_deadline_s": "until the node is healthy",
    "node.verify_healthy_s": "healthy for this long: returned",
    "node.maintenance_lead_s": (
        "so long before a maintenance reservation begins its nodes are left alone already"
    ),
    "node.unrecoverable_jobs": "jobs that Slurm cannot requeue: `wait` for them or `kill` them",
    "node.step_retry_s": "interval between tries of a step",
    "node.step_attempts": "tries of a step",
    "node.doubt_window_s": "how long an effect in doubt is looked for",
    "node.protected": "nodes that hpctl never treats",
    "job.save_grace_s": "time to save a checkpoint before the job is stopped",
    "job.stop_deadline_s": "until the job has left its nodes",
    "job.release_deadline_s": "until its begin delay is removed",
    "job.start_deadline_s": "until it runs again; its turn in Slurm's queue has no deadline",
    "job.prove_s": "running for this long: resumed",
    "job.prove_deadline_s": "until that is so",
    "job.step_retry_s": "interval between tries of a step",
    "job.step_attempts": "tries of a step",
    "job.max_restarts": "restarts in `restart_window_s`, then the job is held",
    "job.restart_window_s": "window of `max_restarts`",
    "job.final_exit_codes": "exit codes that ask for no restart",
    "job.supervisor_grace_s": "time for `hpctl run` to report that it continues",
    "job.settle_s": "wait for a node fault that explains a job's end",
    "job.ended_before_fault_s": "a job that failed, or was requeued, this long before its"
    " node's fault counts as hit",
    "job.completing_shown_s": "a job COMPLETING for so long is a problem that names its nodes",
    "job.completing_deadline_s": "then they are drained and set DOWN, where a restart waits",
    "budgets.drain_min": "nodes that hpctl closes at once, in the cluster and in each"
    " partition: this or `drain_fraction`, whichever is more",
    "budgets.drain_fraction": "fraction of them",
    "budgets.open_min": "remedies under way at once: this or `open_fraction`, whichever is more",
    "budgets.open_fraction": "fraction of all nodes",
    "budgets.partition_min": "the same for each partition",
    "budgets.partition_fraction": "fraction of a partition's nodes",
    "budgets.per_hour": "remedies begun in an hour",
    "budgets.offender_recoveries": "recoveries of a node, then a person decides",
    "budgets.offender_window_s": "window of `offender_recoveries`",
    "budgets.correlated_min": "nodes with one finding that make a mass event: at least this many",
    "budgets.correlated_fraction": "and this fraction",
    "budgets.correlated_window_s": "within this time",
    "budgets.launch_failures": "remedied instances in a row that did not return, then none",
    "budgets.launch_window_s": "window of `launch_failures`",
    "budgets.approval_s": "how long `hpctl approve` lasts",
    "ages.scheduler_s": "oldest view of Slurm to act on",
    "ages.provider_s": "oldest view of the cloud to act on",
    "ages.report_s": "oldest report to act on",
    "ages.silent_s": "an agent not heard for this long is silent",
    "hangs.action": "a job hangs without `hpctl run`: `notify`, `dump` its stacks, and after that "
    "`requeue` or `cancel` ([hangs](policies.md#hangs-of-jobs-without-hpctl-run))",
    "hangs.partitions": "another action for a partition: `{PARTITION: ACTION}`",
    "hangs.floor_s": "no shorter standstill is a hang",
    "hangs.factor": "times its own longest pause before, that is one",
    "hangs.cap_s": "and a longer one always is",
    "hangs.start_s": "the same before the job was seen at work",
    "hangs.dump_s": "how long the dump may take",
    "hangs.shown_s": "`hpctl explain` shows a job of which nothing works for so long",
    "autoscale.enabled": "[autoscaling](capacity.md#autoscaling) on",
    "autoscale.groups": "`{GROUP: {min_count, max_count, partition}}`",
    "autoscale.up_after_s": "jobs wait this long before a group grows",
    "autoscale.down_after_s": "nodes idle this long leave",
    "idle.every_s": "from one [burn-in](grey.md) of an idle node to its next; 0: off",
    "idle.level": "which tests",
    "idle.at_once": "nodes tested at a time",
    "idle.idle_s": "how long a node was idle before",
    "idle.retry_s": "how long an interrupted one is left alone",
    "idle.partition": "where its job goes; by default a partition of the node's",
    "idle.qos": "QOS of its job",
    "acceptance.replace": "test after a replacement, before the node serves",
    "acceptance.reboot": "the same after a reboot",
    "acceptance.reset": "the same after a reset of GPUs",
    "acceptance.add": "of an instance that is new",
    "acceptance.returned": "after `hpctl undrain`",
    "acceptance.software_update": "after a boot that no recovery explains",
    "acceptance.suspected": "of an idle node that the verdicts on two jobs name",
    "acceptance.quick_s": "time limit of a quick test's job",
    "acceptance.full_s": "of a full one's",
    "acceptance.start_s": "how long that job may wait to start",
    "acceptance.result_s": "how long its result may take after its end",
    "acceptance.untested": "what becomes of a node whose test came to no result",
    "acceptance.command": "what the job runs, with `--level LEVEL --id ID` behind it",
    "acceptance.floors": "other [floors](cards.md), `{CARD or INSTANCE TYPE: {FIGURE: LEAST}}`; "
    "0: none",
    "evidence.directory": "shared directory in which the [evidence](evidence.md) of nodes is kept, "
    "as this host sees it, or `s3://BUCKET/PREFIX`; empty: none is kept",
    "evidence.deadline_s": "how long a node's remedy waits for its evidence, its turn included",
    "evidence.at_once": "how many nodes keep theirs at the same time",
    "evidence.keep_days": "older archives are deleted",
    "evidence.keep_gb": "beyond so many gigabytes the oldest archives are deleted",
    "autoscale.cooldown_s": "pause before a group reverses, or asks again after a refusal",
    "autoscale.step": "instances in one change",
    "autoscale.adds_per_day": "instances added in 24 hours",
    "autoscale.hours_per_day": "instance-hours of added instances in 24 hours",
    "autoscale.arrive_deadline_s": "until added instances run",
    "autoscale.leave_deadline_s": "until a removed one is gone",
}


def page() -> str:
    """Return the page. Raises ValueError where keys and meanings are not the same."""
    rows = dict(_list_keys(Config(), ""))
    if rows.keys() != MEANINGS.keys():
        raise ValueError(f"keys and MEANINGS differ: {sorted(rows.keys() ^ MEANINGS.keys())}")
    lines = [HEAD, "## Keys", "", "| key | default | meaning |", "|---|---|---|"]
    section = ""
    for key, default in rows.items():
        if key.partition(".")[0] != section and "." in key:
            section = key.partition(".")[0]
            lines += ["", f"## {section}", "", "| key | default | meaning |", "|---|---|---|"]
        lines.append(f"| `{key.rpartition('.')[2]}` | {default} | {MEANINGS[key]} |")
    return "\n".join(lines) + "\n"


def _list_keys(section: Struct, place: str) -> Iterator[tuple[str, str]]:
    """Yield every key with its default: those of the file itself before those of its sections."""
    plain = {name: getattr(section, name) for name in section.__struct_fields__}
    inner = {k: v for k, v in plain.items() if isinstance(v, Struct) and k != "run_policy"}
    for name, default in plain.items():
        if name not in inner:
            yield place + name, _format_default(default)
    for name, part in inner.items():
        yield from _list_keys(part, f"{name}.")


def _format_default(value: Any) -> str:
    if value is None or isinstance(value, Struct | Mapping | frozenset) or value in ("", ()):
        return ""
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    if isinstance(value, float):
        return f"`{value:.10g}`"
    return f"`{getattr(value, 'value', value)}`"
