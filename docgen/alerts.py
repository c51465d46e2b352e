"""hpctl/service/observability/hpctl.rules.yml: what is worth an alert, and rates that dashboards
share."""

import yaml
from msgspec import Struct

from hpctl.engine.gates import GATES
from hpctl.engine.remedies import REMEDY_GATES


class Alert(Struct, frozen=True):
    """One alert. `severity`: page (a person now), ticket (a person today). `fix`: the command."""

    name: str
    expr: str
    holds: str
    severity: str
    summary: str
    fix: str


def _ended(kind: str, end: str) -> str:
    return f'increase(hpctl_recoveries_ended_total{{kind="{kind}",end=~"{end}"}}[1h]) > 0'


_OF_RECOVERIES = [gate.name for gate in GATES if gate.approvable]
_OF_REMEDIES = [gate.name for gate in REMEDY_GATES if gate.approvable]
_APPROVABLE = "|".join([*_OF_RECOVERIES, *_OF_REMEDIES])

ALERTS = (
    Alert("HpctlDown", 'up{job="hpctl"} == 0', "2m", "page",
          "No daemon answers at {{ $labels.instance }}: nothing is recovered.",
          "systemctl status hpctl-daemon"),
    Alert("HpctlNoLeader", "sum(hpctl_leader) == 0", "1m", "page",
          "No daemon leads: nothing is recovered.", "hpctl status"),
    Alert("HpctlStuck", "rate(hpctl_cycle_seconds_count[5m]) == 0 and hpctl_leader == 1", "5m",
          "page", "The daemon's loop stands still.", "journalctl -u hpctl-daemon"),
    Alert("HpctlCyclesFail", "increase(hpctl_cycles_failed_total[15m]) > 2", "0m", "page",
          "Cycles of the daemon fail.", "hpctl status"),
    Alert("HpctlEscalated", _ended("node", "escalated"), "0m", "page",
          "A node needs a person.", "hpctl status"),
    Alert("HpctlJobGivenUp", _ended("job", "gave_up|held"), "0m", "ticket",
          "A job was not started again.", "hpctl jobs --all"),
    Alert("HpctlBlocked", f'sum(hpctl_holds{{gate=~"{_APPROVABLE}"}}) > 0', "15m", "page",
          "A gate blocks recoveries until somebody approves.", "hpctl status"),
    Alert("HpctlInternalError", 'hpctl_quarantined{lasting="yes"} > 0', "0m", "page",
          "A node or job is left alone because of an internal error.", "hpctl status"),
    Alert("HpctlStepInDoubt", "hpctl_steps_in_doubt > 0", "30m", "ticket",
          "Nobody can say whether a step took effect.", "hpctl recoveries"),
    Alert("HpctlPaused", "hpctl_paused == 1", "12h", "ticket",
          "hpctl is paused.", "hpctl unpause"),
    Alert("HpctlAgentsSilent", 'hpctl_agents{state="silent"} > 0', "10m", "ticket",
          "Agents are silent.", "hpctl nodes"),
    Alert("HpctlSparesUsedUp",
          'hpctl_spares{state="reserved"} < ignoring(state) hpctl_spares{state="configured"}',
          "30m", "ticket", "Spares are used up.", "hpctl capacity"),
    Alert("HpctlApiThrottled",
          'sum(rate(hpctl_api_calls_total{result="throttled"}[10m])) > 0.1', "10m", "ticket",
          "SageMaker throttles hpctl.", "hpctl doctor"),
    Alert("HpctlJournalSlow",
          "histogram_quantile(0.9, rate(hpctl_journal_append_seconds_bucket[5m])) > 0.1",
          "10m", "ticket", "The journal takes over 100 ms an append.", "hpctl status"),
    Alert("HpctlTrainingTimeLow", "hpctl:effective_training_time:ratio1d < 0.9", "1h", "ticket",
          "Over a tenth of the GPU time of {{ $labels.partition }} was lost in a day.",
          "hpctl recoveries --all --since 1d"),
    Alert("HpctlFalseDrains", 'hpctl:drained_node_seconds:share7d{found="healthy"} > 0.5', "1h",
          "ticket", "Over half of the time drained was that of healthy nodes.",
          "hpctl recoveries --all --since 7d"),
    Alert("HpctlAgentDown", 'up{job="hpctl-agents"} == 0', "10m", "ticket",
          "The agent of {{ $labels.instance }} does not answer.",
          "hpctl explain {{ $labels.instance }}"),
    Alert("HpctlGpuResetPending", "max by (instance) (hpctl_agent_gpu_remap_pending) == 1", "6h",
          "ticket", "A GPU of {{ $labels.instance }} waits for a reset.",
          "hpctl explain {{ $labels.instance }}"),
    Alert("HpctlMountSilent", "hpctl_agent_mount_silent_seconds > 60", "1m", "ticket",
          "{{ $labels.mountpoint }} does not answer on {{ $labels.instance }}.",
          "hpctl explain {{ $labels.instance }}"),
    Alert("HpctlGpuSlow", "hpctl:gpu_sm_clock:of_peers < 0.9", "10m", "ticket",
          "GPU {{ $labels.gpu }} of {{ $labels.instance }} clocks below its peers.",
          "hpctl explain {{ $labels.instance }}"),
    Alert("HpctlNicRetransmits", "hpctl:efa_retransmits:above_peers > 0.001", "10m", "ticket",
          "{{ $labels.instance }} sends more again than its peers do.",
          "hpctl explain {{ $labels.instance }}"),
)  # fmt: skip

_LOST = "sum by (partition) (increase(hpctl_partition_lost_gpu_seconds_total[1d]))"
_HELD = "sum by (partition) (increase(hpctl_job_gpu_seconds_total[1d]))"
_BUSY = "(hpctl_agent_gpu_sm_clock_hertz and hpctl_agent_gpu_utilization_ratio > 0.5)"
_RETRANS = 'hpctl_agent_peer_value{gauge="efa.retrans_ratio"}'
_DRAINED = "increase(hpctl_drained_node_seconds_total[7d])"
RECORDS = {
    "hpctl:effective_training_time:ratio1d": f"{_HELD} / ({_HELD} + {_LOST})",
    "hpctl:lost_gpu_hours:increase1d": "increase(hpctl_lost_gpu_seconds_total[1d]) / 3600",
    "hpctl:drained_node_seconds:share7d":
        f"{_DRAINED} / ignoring(found) group_left sum without (found) ({_DRAINED})",
    "hpctl:gpu_sm_clock:of_peers":
        f"{_BUSY} / on(instance_type) group_left quantile by (instance_type) (0.5, {_BUSY})",
    "hpctl:efa_retransmits:above_peers":
        f"{_RETRANS} - on(instance_type) group_left quantile by (instance_type) (0.5, {_RETRANS})",
}  # fmt: skip
"""Expressions that alerts and dashboards share. Peers: the nodes of one instance type."""


def rules() -> str:
    """The file."""
    alerts = [
        {
            "alert": a.name,
            "expr": a.expr,
            "for": a.holds,
            "labels": {"severity": a.severity},
            "annotations": {"summary": a.summary, "fix": f"Run `{a.fix}`."},
        }
        for a in ALERTS
    ]
    records = [{"record": name, "expr": expr} for name, expr in RECORDS.items()]
    groups = [{"name": "hpctl-records", "rules": records}, {"name": "hpctl", "rules": alerts}]
    note = "# generated by `python -m docgen` from docgen/alerts.py: do not edit\n"
    return note + yaml.safe_dump({"groups": groups}, sort_keys=False, width=100)
