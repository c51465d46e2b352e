"""hpctl/service/observability/hpctl.rules.yml and docs/alerts.md: what is worth an alert.

Each rule states what is so now, by a gauge, and stays open as long as it is. Series are of one
head node each; a standby's gauges are 0, so the greatest of a cluster's is the leader's.
"""

import re
from typing import Final

import yaml
from msgspec import Struct

PAGE, TICKET, ALWAYS = "page", "ticket", "none"
PLACEHOLDER: Final = "RUNBOOK"
"""What the shipped rules have for the address of docs/alerts.md; `render` puts it there."""


class Alert(Struct, frozen=True, kw_only=True):
    """One alert. `holds`: for how long it is so before it fires; `keeps`: for how long it stays
    open after that is over or cannot be read, which a restart of the daemon takes. `severity`: page
    (a person now), ticket (a person within a day), none. `summary` says what and which,
    `description` since when and what follows from it; `act`: what to do, Markdown; `ends`: what
    closes it."""

    name: str
    expr: str
    holds: str
    severity: str
    summary: str
    description: str
    act: tuple[str, ...]
    ends: str
    keeps: str = "10m"

    @property
    def anchor(self) -> str:
        """Return the name of its section on the page."""
        return self.name.lower()


def _select_leaders(series: str, *labels: str) -> str:
    """Return a gauge of the daemon that leads: each cluster's, whichever head node that is."""
    return f"max by ({', '.join(['cluster', *labels])}) ({series})"


def _match_failure(part: str) -> str:
    return _select_leaders(f'hpctl_trouble{{part="{part}"}}') + " == 1"


def _match_blocked(gates: str, seconds: int) -> str:
    since = _select_leaders(f'hpctl_holds_since_timestamp_seconds{{gate=~"{gates}"}}', "gate")
    return f"({since} > 0) < time() - {seconds}"


_LEADS = f"{_select_leaders('hpctl_leader')} == 1"
_ANSWERS = 'max by (cluster) (up{job="hpctl"})'
_SILENT = _select_leaders('hpctl_agents{state="silent"}')
_HEARD = _select_leaders('hpctl_agents{state="heard"}')
_MOST_SILENT = f"{_SILENT} / ({_SILENT} + {_HEARD}) > 0.5 and {_SILENT} >= 3"
_SCRAPED = 'up{job="hpctl-agents"}'
_RESERVED = _select_leaders('hpctl_spares{state="reserved"}')
_CONFIGURED = _select_leaders('hpctl_spares{state="configured"}')
_FREE = "hpctl_state_dir_free_ratio"
_LOST = "sum by (cluster, partition) (increase(hpctl_partition_lost_gpu_seconds_total[1d]))"
_HELD = "sum by (cluster, partition) (increase(hpctl_job_gpu_seconds_total[1d]))"
_BUSY = "(hpctl_agent_gpu_sm_clock_hertz and hpctl_agent_gpu_utilization_ratio > 0.5)"
_RETRANS = 'hpctl_agent_peer_value{gauge="efa.retrans_ratio"}'
_DRAINED = "sum by (cluster, found) (increase(hpctl_drained_node_seconds_total[7d]))"
_LOST_1D, _HELD_1D = "hpctl:lost_gpu_seconds:increase1d", "hpctl:job_gpu_seconds:increase1d"
_DRAINED_7D = "hpctl:drained_node_seconds:increase7d"
RECORDS = {
    _LOST_1D: _LOST,
    _HELD_1D: _HELD,
    "hpctl:effective_training_time:ratio1d": f"{_HELD_1D} / ({_HELD_1D} + {_LOST_1D})",
    "hpctl:lost_gpu_hours:increase1d":
        "sum by (cluster, class) (increase(hpctl_lost_gpu_seconds_total[1d])) / 3600",
    _DRAINED_7D: _DRAINED,
    "hpctl:drained_node_seconds:share7d":
        f"{_DRAINED_7D} / ignoring(found) group_left sum without (found) ({_DRAINED_7D})",
    "hpctl:gpu_sm_clock:of_peers":
        f"{_BUSY} / on(instance_type) group_left quantile by (instance_type) (0.5, {_BUSY})",
    "hpctl:efa_retransmits:above_peers":
        f"{_RETRANS} - on(instance_type) group_left quantile by (instance_type) (0.5, {_RETRANS})",
}  # fmt: skip
"""Expressions that alerts and dashboards share, in order: each may name those before it. Peers: the
nodes of one instance type."""

_SINCE = "Since {{ $value | humanizeTimestamp }}."
_BLOCKS: Final = {
    "correlated": "many nodes fail the same check",
    "drain_budget": "hpctl has closed as many nodes as its budget of drains allows",
    "launch_breaker": "the last replaced instances did not come up",
}
"""The gates that let a cluster decay until a person decides, and what each means."""

ALERTS = (
    Alert(
        name="HpctlDown",
        expr=f"{_ANSWERS} == 0",
        holds="5m",
        keeps="0s",
        severity=PAGE,
        summary="No hpctl daemon answers on any head node: nothing is recovered.",
        description=(
            "For over 5 minutes no head node has answered Prometheus. Jobs run on, but a node that"
            " fails now is not drained, and its job is not restarted."
        ),
        act=(
            "Run `systemctl status hpctl-daemon` on each head node, and `journalctl -u hpctl-daemon -n 50`.",
            "It does not start: see [the daemon does not start](troubleshooting.md#the-daemon-does-not-start).",
            "It runs, and `curl -s http://HEAD:8470/metrics` answers there: the network between"
            " Prometheus and the head nodes is the problem.",
        ),
        ends="a head node answers",
    ),
    Alert(
        name="HpctlNoLeader",
        expr=f"{_ANSWERS} == 1 unless on (cluster) {_LEADS}",
        holds="2m",
        keeps="0s",
        severity=PAGE,
        summary="No hpctl daemon leads: nothing is recovered.",
        description=(
            "For over 2 minutes head nodes have answered, and none of them leads. A leader that"
            " cannot write to the journal's database stops leading."
        ),
        act=(
            "Run `hpctl status` on a head node: it names the last leader and since when none leads.",
            "Run `hpctl doctor`: it tries the journal's database. Bring the database back; a daemon"
            " then leads within seconds, without a restart.",
            "The database answers: read `journalctl -u hpctl-daemon` on every head node.",
        ),
        ends="a daemon leads",
    ),
    Alert(
        name="HpctlStuck",
        expr=(
            f"{_select_leaders('hpctl_cycle_age_seconds', 'instance')} > 300"
            f" unless on (cluster, instance) {_FREE} < 0.03"
        ),
        holds="1m",
        keeps="0s",
        severity=PAGE,
        summary="The daemon on {{ $labels.instance }} ends no cycle: nothing is recovered.",
        description=(
            "The last cycle without an error ended {{ $value | humanizeDuration }} ago. The daemon"
            " hangs, or each of its cycles fails."
        ),
        act=(
            "Read `journalctl -u hpctl-daemon -n 100`: a cycle that fails is logged with its error.",
            "Run `hpctl status`: problems name what cannot be written or read.",
            "Nothing helps: `systemctl restart hpctl-daemon`. It continues where it was; no step is"
            " repeated blindly.",
        ),
        ends="a cycle ends without an error",
    ),
    Alert(
        name="HpctlSlurmUnreadable",
        expr=_match_failure("slurm"),
        holds="10m",
        severity=PAGE,
        summary="hpctl cannot read Slurm: nothing is recovered.",
        description=(
            "For over 10 minutes slurmctld has not answered the daemon. Until it does, hpctl begins"
            " nothing and continues nothing."
        ),
        act=(
            "Run `scontrol ping` on the head node. slurmctld is down: start it.",
            "slurmctld answers: run `hpctl doctor`, which tries what the daemon runs, as the"
            " daemon's user.",
        ),
        ends="Slurm can be read",
    ),
    Alert(
        name="HpctlBlocked",
        expr=f"{_match_blocked('|'.join(_BLOCKS), 900)} unless on (cluster) ({_MOST_SILENT})",
        holds="0s",
        severity=PAGE,
        summary=(
            "The gate {{ $labels.gate }} blocks recoveries: "
            + "".join(
                f'{{{{ if eq $labels.gate "{gate}" }}}}{what}{{{{ end }}}}'
                for gate, what in _BLOCKS.items()
            )
            + "."
        ),
        description=f"{_SINCE} `hpctl status` names the nodes. It lasts until a person decides, or"
        " until the cause is gone.",
        act=(
            "`correlated`: look at one node (`hpctl agent check` there). The hardware is really"
            " broken: `hpctl approve --rule RULE`. The check or the fabric is: repair that, and"
            " leave the nodes blocked.",
            "`drain_budget`: look for what the closed nodes have in common. Return what is good"
            " (`hpctl undrain NODE`), or `hpctl approve NODE`.",
            "`launch_breaker`: run `hpctl cluster events --level Error`, and read the lifecycle log"
            " that it names. Do not approve before that is repaired.",
        ),
        ends="the gate blocks nothing",
    ),
    Alert(
        name="HpctlAgentsLost",
        expr=_MOST_SILENT,
        holds="15m",
        severity=PAGE,
        summary="Most agents are silent: faults of their nodes are not seen.",
        description=(
            "For over 15 minutes {{ $value | humanizePercentage }} of the agents of nodes in"
            " service have not reported."
        ),
        act=(
            "Run `hpctl doctor` on the head node: port 8470 and munged are common to all agents.",
            "On one silent node run `systemctl status hpctl-agent` and `hpctl agent check`.",
            "See [the agent's reports are refused](troubleshooting.md#the-agents-reports-are-refused).",
        ),
        ends="half of the agents report",
    ),
    Alert(
        name="HpctlDiskFull",
        expr=f"{_FREE} < 0.03",
        holds="5m",
        severity=PAGE,
        summary="The disk of hpctl's state directory on {{ $labels.instance }} is full.",
        description=(
            "{{ $value | humanizePercentage }} is free. Recoveries go on in the journal's reserve; one"
            " that cannot be written down is not begun."
        ),
        act=(
            "Run `hpctl status`, and `df -h` of the daemon's `state_dir`, on that head node.",
            "Make room, or let the file system grow. Delete nothing in `state_dir` by hand.",
        ),
        ends="3 % are free",
    ),
    Alert(
        name="HpctlDiskLow",
        expr=f"({_FREE} < 0.1) >= 0.03",
        holds="10m",
        severity=TICKET,
        summary="The disk of hpctl's state directory on {{ $labels.instance }} fills up.",
        description="{{ $value | humanizePercentage }} is free. At 3 % it pages.",
        act=(
            "Run `df -h` of the daemon's `state_dir` on that head node, and make room.",
            "The journal is what grows: lower `journal.keep_days` ([configuration](configuration.md)).",
        ),
        ends="10 % are free",
    ),
    Alert(
        name="HpctlHeadDown",
        expr=f'up{{job="hpctl"}} == 0 and on (cluster) {_LEADS}',
        holds="15m",
        severity=TICKET,
        summary="The hpctl daemon on {{ $labels.instance }} is down; another one leads.",
        description=(
            "For over 15 minutes it has not answered. Recovery continues, and no standby takes over"
            " if the leader fails as well."
        ),
        act=(
            "Run `systemctl status hpctl-daemon` on that head node, and start it.",
            "The head node is gone for good: render the configuration without it"
            " (`hpctl observability render --head ...`).",
        ),
        ends="that daemon answers",
    ),
    Alert(
        name="HpctlTargetMissing",
        expr='absent(up{job="hpctl"})',
        holds="15m",
        severity=TICKET,
        summary="Prometheus scrapes no head node of hpctl.",
        description=(
            "For over 15 minutes no target of the job `hpctl` has existed, so that no other alert"
            " of hpctl can fire."
        ),
        act=(
            "Open Prometheus' Status > Targets. The job `hpctl` is missing: load the configuration"
            " that `hpctl observability render` writes.",
        ),
        ends="a target exists, whether it answers or not",
    ),
    Alert(
        name="HpctlEscalated",
        expr=_select_leaders('hpctl_waiting_since_timestamp_seconds{kind="node"}', "name") + " > 0",
        holds="1m",
        severity=TICKET,
        summary="Node {{ $labels.name }} waits for a person.",
        description=f"{_SINCE} hpctl has tried what it may, and leaves the node drained.",
        act=(
            "Run `hpctl explain NODE`: it says what was tried, and why that ended.",
            "The node is good: `hpctl undrain NODE`. It is not: `hpctl replace NODE`.",
        ),
        ends="the node is returned, or treated again",
    ),
    Alert(
        name="HpctlJobGivenUp",
        expr=_select_leaders('hpctl_waiting_since_timestamp_seconds{kind="job"}', "name") + " > 0",
        holds="1m",
        severity=TICKET,
        summary="Job {{ $labels.name }} is not started again automatically.",
        description=f"{_SINCE} hpctl holds the job, or gave it up.",
        act=(
            "Run `hpctl explain JOB`: it says why.",
            "The job is held: after the repair, `scontrol release JOB`.",
            "The job was given up: its owner submits it again. The alert ends a day later.",
        ),
        ends="the job is released, runs again or is canceled, or a day after it was given up",
    ),
    Alert(
        name="HpctlBudgetFull",
        expr=_match_blocked("budget", 21600),
        holds="0s",
        severity=TICKET,
        summary="Remedies have waited for a slot of the budget for hours.",
        description=f"{_SINCE} The nodes are drained. The next ones begin by themselves as slots"
        " become free.",
        act=(
            "Run `hpctl status`: it names the nodes that wait, and `hpctl explain NODE` what takes the"
            " slots.",
            "Nodes that are left closed to a person take slots: `hpctl undrain NODE` or"
            " `hpctl replace NODE`.",
            "Too few slots for this cluster: raise `budgets` ([configuration](configuration.md)).",
        ),
        ends="no remedy waits for a slot",
    ),
    Alert(
        name="HpctlOffender",
        expr=_match_blocked("offender", 900),
        holds="0s",
        severity=TICKET,
        summary="A node that breaks again and again waits for a decision.",
        description=f"{_SINCE} `hpctl status` names it. It stays drained until a person decides.",
        act=(
            "Run `hpctl explain NODE`: it lists the recoveries before.",
            "Replace it (`hpctl replace NODE`), or let hpctl go on (`hpctl approve NODE`).",
        ),
        ends="no repeat offender is held",
    ),
    Alert(
        name="HpctlInternalError",
        expr=_select_leaders('hpctl_quarantined{lasting="yes"}') + " > 0",
        holds="0s",
        severity=TICKET,
        summary="{{ $value }} nodes or jobs are left alone because of an internal error.",
        description="For over 10 minutes. `hpctl status` names them; all others are treated.",
        act=(
            "Run `hpctl status`, and `hpctl explain` of each.",
            "Report the bug with `journalctl -u hpctl-daemon`'s lines of `internal_error`.",
            "Treat the node by hand meanwhile: `hpctl replace NODE`.",
        ),
        ends="none is left alone",
    ),
    Alert(
        name="HpctlStepInDoubt",
        expr=_select_leaders("hpctl_steps_in_doubt") + " > 0",
        holds="30m",
        severity=TICKET,
        summary="It is not known whether {{ $value }} steps took effect.",
        description="For over 30 minutes. hpctl observes before it repeats such a step.",
        act=(
            "Run `hpctl recoveries`: the steps in doubt are named.",
            "Look in the AWS console or with `hpctl cluster events` whether the order arrived.",
        ),
        ends="each step has an outcome",
    ),
    Alert(
        name="HpctlPaused",
        expr=(
            f"({_select_leaders('hpctl_paused_since_timestamp_seconds', 'by')} > 0) < time() - 43200"
        ),
        holds="0s",
        severity=TICKET,
        summary="hpctl has been paused for over 12 hours ({{ $labels.by }}).",
        description=f"{_SINCE} Meanwhile it acts on nothing.",
        act=(
            "`operator`: `hpctl status` says who paused it. `hpctl unpause` lifts it.",
            "`kill_switch`: remove the file `/etc/hpctl/STOP`.",
        ),
        ends="hpctl acts again",
    ),
    Alert(
        name="HpctlAgentsSilent",
        expr=f"{_SILENT} > 0 unless on (cluster) ({_MOST_SILENT})",
        holds="15m",
        severity=TICKET,
        summary="The agents of {{ $value }} nodes in service are silent.",
        description="For over 15 minutes. Faults of these nodes are seen by Slurm and HyperPod alone.",
        act=(
            "Run `hpctl nodes`: it names them. In mode `own` hpctl itself reboots such a node.",
            "On the node: `systemctl status hpctl-agent`, then `hpctl agent check`.",
        ),
        ends="they report, or are out of service",
    ),
    Alert(
        name="HpctlNodesUnwatched",
        expr=_select_leaders('hpctl_agents{state="never"}') + " > 0",
        holds="6h",
        severity=TICKET,
        summary="{{ $value }} nodes in service have never been heard.",
        description="For over 6 hours. No agent runs there, or it reports to another head node.",
        act=(
            "Run `hpctl nodes`: they have no report.",
            "Install the agent there ([installation](install.md)).",
        ),
        ends="their agents report",
    ),
    Alert(
        name="HpctlAgentsUnscraped",
        expr=(
            f"count by (cluster) ({_SCRAPED} == 0) / count by (cluster) ({_SCRAPED}) > 0.5"
            f" unless on (cluster) ({_MOST_SILENT})"
        ),
        holds="30m",
        severity=TICKET,
        summary="Prometheus cannot reach {{ $value | humanizePercentage }} of the agents.",
        description=(
            "For over 30 minutes. They report to the daemon; alerts and dashboards of GPUs, disks and"
            " networks are blind."
        ),
        act=(
            "Let Prometheus reach port 8471 of the nodes. It must run on a head node: agents answer"
            " no other host.",
        ),
        ends="half of them answer",
    ),
    Alert(
        name="HpctlSparesUsedUp",
        expr=f"{_RESERVED} < {_CONFIGURED}",
        holds="2h",
        severity=TICKET,
        summary="Only {{ $value }} spare nodes are left.",
        description=(
            "For over 2 hours there have been fewer than configured. A job that loses a node may"
            " have to wait for a replacement."
        ),
        act=(
            "Run `hpctl cluster capacity`: it says what keeps the spares from being refilled.",
            "Nodes wait for a person: return or replace them.",
        ),
        ends="as many are reserved as are configured",
    ),
    Alert(
        name="HpctlCloudUnreadable",
        expr=_match_failure("cloud"),
        holds="30m",
        severity=TICKET,
        summary="hpctl cannot read the cluster from SageMaker.",
        description=(
            "For over 30 minutes. Nodes are drained and jobs restarted; nothing is rebooted or"
            " replaced on what is not known."
        ),
        act=(
            "Run `hpctl status`: it names the error. Throttling passes; see who else calls"
            " the API.",
            "Run `hpctl doctor`: it tries credentials and each permission.",
        ),
        ends="the cluster can be read",
    ),
    Alert(
        name="HpctlNotifierFails",
        expr=_match_failure("notify"),
        holds="15m",
        severity=TICKET,
        summary="hpctl cannot deliver notifications.",
        description=(
            "For over 15 minutes at least one sink has refused. Messages are kept for days, and sent"
            " when it takes them."
        ),
        act=(
            "Run `hpctl status`: it names the sink and the error.",
            "Run `hpctl notify test`: it tries each sink ([notifications](notify.md)).",
        ),
        ends="each sink takes what it is sent",
    ),
    Alert(
        name="HpctlConfigurationRefused",
        expr=_match_failure("configuration"),
        holds="1h",
        severity=TICKET,
        summary="The daemon runs with an earlier configuration than the file says.",
        description="For over an hour: the file has an error, or a change needs a restart.",
        act=(
            "Run `hpctl config check`: it names each error.",
            "The file is good: `hpctl status` names the keys that need `systemctl restart hpctl-daemon`.",
        ),
        ends="the daemon runs with the file",
    ),
    Alert(
        name="HpctlPartFails",
        expr=_select_leaders('hpctl_trouble{part=~"lock|page"}', "part") + " == 1",
        holds="30m",
        severity=TICKET,
        summary="The daemon's part {{ $labels.part }} fails.",
        description="For over 30 minutes. Recovery continues.",
        act=("Run `hpctl status`: problems name what fails and why.",),
        ends="the part works",
    ),
    Alert(
        name="HpctlJournalSlow",
        expr=(
            "histogram_quantile(0.9, sum by (cluster, le)"
            " (rate(hpctl_journal_append_seconds_bucket[5m]))) > 0.1"
        ),
        holds="10m",
        severity=TICKET,
        summary="The journal takes over 100 ms an append.",
        description=(
            "For over 10 minutes; now {{ $value | humanizeDuration }} for one append in ten. Each"
            " step of a recovery waits for two."
        ),
        act=(
            "A database: look at its latency from the head node. A file: look at its disk (`iostat -x 1`).",
        ),
        ends="nine of ten appends take less, or nothing is written",
    ),
    Alert(
        name="HpctlClockSkew",
        expr="abs(hpctl_time_seconds - timestamp(hpctl_time_seconds)) > 30",
        holds="10m",
        severity=TICKET,
        summary="The clock of the head node {{ $labels.instance }} is wrong.",
        description=(
            "For over 10 minutes it has been {{ $value | humanizeDuration }} off Prometheus'. MUNGE"
            " refuses nodes whose clock is 5 minutes off."
        ),
        act=(
            "Run `chronyc tracking` on the head node and on Prometheus' host, and repair the one that is off.",
        ),
        ends="the clocks agree",
    ),
    Alert(
        name="HpctlTrainingTimeLow",
        expr=(
            "hpctl:effective_training_time:ratio1d < 0.9"
            " and hpctl:lost_gpu_seconds:increase1d > 28800"
        ),
        holds="1h",
        severity=TICKET,
        summary="Over a tenth of the GPU time of {{ $labels.partition }} was lost in a day.",
        description="{{ $value | humanizePercentage }} of it was training. Over 8 GPU-hours were lost.",
        act=(
            "Run `hpctl recoveries --all --since 1d`, and `hpctl report --since 1d`: losses by cause.",
            "Much of it is repeated work: save more often (`hpctl checkpoint advise JOB`).",
        ),
        ends="less was lost in the last day",
    ),
    Alert(
        name="HpctlFalseDrains",
        expr=(
            'hpctl:drained_node_seconds:share7d{found="healthy"} > 0.5'
            " and hpctl:drained_node_seconds:increase7d > 86400"
        ),
        holds="1h",
        severity=TICKET,
        summary="Over half of the node time drained was that of healthy nodes.",
        description="{{ $value | humanizePercentage }} of 7 days' drained time, over a node-day.",
        act=(
            "Run `hpctl recoveries --all --since 7d`: those that ended without a remedy share a rule.",
            "Give that rule a longer `settle_s`, or another urgency ([configuration](configuration.md)).",
        ),
        ends="the share falls",
    ),
    Alert(
        name="HpctlGpuResetPending",
        expr="max by (cluster, instance) (hpctl_agent_gpu_remap_pending) == 1",
        holds="6h",
        severity=TICKET,
        summary="A GPU of {{ $labels.instance }} waits for a reset.",
        description="For over 6 hours rows have waited to be remapped.",
        act=("Run `hpctl explain NODE`: it names the job that the reset waits for.",),
        ends="the GPU was reset",
    ),
    Alert(
        name="HpctlMountSilent",
        expr="count by (cluster, mountpoint) (hpctl_agent_mount_silent_seconds > 60)",
        holds="2m",
        severity=TICKET,
        summary="{{ $labels.mountpoint }} does not answer on {{ $value }} nodes.",
        description=(
            "For over 2 minutes. Nodes that have waited longest:"
            '{{ range printf "topk(5, hpctl_agent_mount_silent_seconds{mountpoint=%q} > 60)"'
            " $labels.mountpoint | query }} {{ .Labels.instance }}{{ end }}."
        ),
        act=(
            "On many nodes: look at the file system (FSx, NFS) itself.",
            "On one: `hpctl explain NODE`, then `hpctl reboot NODE`.",
        ),
        ends="the mount answers on every node",
    ),
    Alert(
        name="HpctlGpuSlow",
        expr="hpctl:gpu_sm_clock:of_peers < 0.9",
        holds="15m",
        severity=TICKET,
        summary="GPU {{ $labels.gpu }} of {{ $labels.instance }} clocks below its peers.",
        description="For over 15 minutes it has run at {{ $value | humanizePercentage }} of their median.",
        act=(
            "Run `hpctl explain NODE`, and look at the dashboard of grey failures: is it hot, or throttled?",
            "Test it: `hpctl acceptance nodes NODE --level full` ([grey nodes](grey.md)).",
        ),
        ends="it clocks like its peers, or is idle",
    ),
    Alert(
        name="HpctlNicRetransmits",
        expr="hpctl:efa_retransmits:above_peers > 0.001",
        holds="15m",
        severity=TICKET,
        summary="{{ $labels.instance }} retransmits more than its peers do.",
        description="For over 15 minutes {{ $value | humanizePercentage }} more of its packets.",
        act=(
            "Run `hpctl explain NODE`.",
            "One node of many: replace it. All of a leaf: the switch.",
        ),
        ends="it retransmits as its peers do",
    ),
    Alert(
        name="HpctlWatchdog",
        expr="vector(1)",
        holds="0s",
        keeps="0s",
        severity=ALWAYS,
        summary="This alert always fires.",
        description=(
            "Route it to a dead man's switch, which pages where it does not arrive: Prometheus or"
            " Alertmanager is down."
        ),
        act=(
            "Nothing, while it arrives. It does not: look at Prometheus, Alertmanager, and the way between.",
        ),
        ends="never",
    ),
)


def make_rules() -> str:
    """Return the file."""
    records = [{"record": name, "expr": expr} for name, expr in RECORDS.items()]
    alerts = [_make_rule(alert) for alert in ALERTS]
    groups = [{"name": "hpctl-records", "rules": records}, {"name": "hpctl", "rules": alerts}]
    note = "# generated by `python -m docgen` from docgen/alerts.py: do not edit\n"
    return note + yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)


def _make_rule(alert: Alert) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        "for": alert.holds,
        "keep_firing_for": alert.keeps,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{PLACEHOLDER}#{alert.anchor}",
        },
    }


HEAD = """# Alerts

`hpctl observability render` writes these rules for Prometheus ([metrics](metrics.md)). Severities:

- `page`: nothing is recovered, or the cluster decays until a person decides. A person, now.
- `ticket`: a person, within a day. Recovery continues.
- `none`: HpctlWatchdog alone, for a dead man's switch.

Each rule states what is so now, and stays open while it is. Most stay open for 10 minutes longer
(`keep_firing_for`), so that a restart, a takeover or a missed scrape closes none. "Since" is the journal's time, which a
restart does not change. A Prometheus that scrapes several clusters needs the label `cluster` on their targets.

A node that waits for a person is a ticket, because its jobs run elsewhere. Where they cannot (no spare nodes), route
HpctlEscalated to a pager.

"""


def page() -> str:
    """docs/alerts.md."""
    rows = "\n".join(
        f"| [{alert.name}](#{alert.anchor}) | {alert.severity} | {alert.ends} |" for alert in ALERTS
    )
    table = f"| alert | severity | it ends when |\n|---|---|---|\n{rows}\n"
    return HEAD + table + "".join(_make_section(alert) for alert in ALERTS)


def shipped_page() -> str:
    """Return the page as `render` writes it beside the rules: without links to pages that are not
    there."""
    return re.sub(r"\[([^\]]+)\]\((?!#)[^)]*\)", r"\1", page())


def _make_section(alert: Alert) -> str:
    steps = "".join(f"- {step}\n" for step in alert.act)
    holds = "" if alert.holds == "0s" else f", for {alert.holds}"
    plain = _to_prose(alert.summary)
    return (
        f"\n## {alert.name}\n\n*{alert.severity}.* {plain} {_to_prose(alert.description)}\n\n"
        f"```\n{alert.expr}\n```\n\nIt fires while this holds{holds}, and ends when {alert.ends}.\n\n"
        f"{steps}"
    )


def _to_prose(template: str) -> str:
    """Return a template of Prometheus' as prose: what it fills in becomes a word in capitals."""
    text = re.sub(r"\{\{ if eq .*\{\{ end \}\}", "see below", template)
    text = re.sub(r"\{\{ range .*\{\{ end \}\}", " NODES", text)
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda m: m[1].upper(), text)
    text = re.sub(r"\{\{ \$value \| humanizeTimestamp \}\}", "TIME", text)
    text = re.sub(r"\{\{ \$value \| humanizeDuration \}\}", "DURATION", text)
    text = re.sub(r"\{\{ \$value \| humanizePercentage \}\}", "N %", text)
    return text.replace("{{ $value }}", "N")
