"""What others say: HyperPod's health agent, a site's own checks, Slurm, the cloud, silence.

What HyperPod's agent writes into its log is shown, and no more. What it marks in Slurm, in the
words on which HyperPod's node recovery acts, is believed: where that recovery is off nobody else
acts on it. What a site's own check means only the site knows: it writes a rule for it
(docs/plugins.md), and until then a failure is `check-failed`.

No row on a node that somebody cannot reach rests on what the node says of itself, so a row that is
treated settles first: what passes by itself within a minute or two is shown and left alone.
`hpctl.core.reach` states those findings.

What the head node finds itself, peers compared and history, is only counted or watched: one slow
signal never replaces a node. A site that wants more gives a rule a treatment of its own:
`catalogue: {peer-throttle: {urgency: after_jobs, ladder: [reset_gpu, reboot]}}`.
"""

from hpctl.core.faults.row import FaultRow, rows

_THEIRS = "shown as Suspect: HyperPod's own recovery acts on it, never hpctl"

HMA = (
    FaultRow("hma", "replace", "X", "HyperPod's health agent marked the node Action:Replace"),
    FaultRow("hma", "reboot", "B", "HyperPod's health agent marked the node Action:Reboot"),
    FaultRow(
        "hma",
        "spent",
        "R1",
        "the node still bears a mark of HyperPod's health agent for what was done since",
        ladder="NONE",
    ),
    FaultRow(
        "hma",
        "xid",
        "W",
        "HyperPod's health agent saw an Xid by DCGM's policy",
        differs="shown as Suspect: the kernel's own line decides, and this record names no action",
    ),
    *rows(
        "hma",
        ("dcgm", "W", "HyperPod's health agent saw a DCGM policy violation", "", _THEIRS),
        ("npd", "W", "HyperPod's health agent reports a hardware event", "", _THEIRS),
        (
            "npd-XidUserAppError",
            "I",
            "HyperPod's health agent saw an Xid that it lays on the application",
        ),
        (
            "npd-KernelDeadlock",
            "I",
            "HyperPod's health agent saw a blocked kernel task, which it counts as software",
        ),
        ("condition", "W", "HyperPod's health agent reports a node condition", "", _THEIRS),
        ("event", "W", "HyperPod's health agent asks for an action on the node", "", _THEIRS),
        (
            "event-NvidiaGpuXidRestartApp",
            "I",
            "HyperPod's health agent saw an Xid after which the application restarts",
        ),
    ),
    FaultRow(
        "agent.plugins",
        "",
        "W",
        "the agent refuses to run a file in its directory of checks",
        differs="shown as Suspect: a check that the site counts on does not run",
    ),
)

REACH = (
    FaultRow(
        "node",
        "lost",
        "B",
        "the agent is silent, and Slurm or the cloud agrees that the node is gone",
        differs="two independent observers agree",
    ),
    FaultRow(
        "slurm",
        "down",
        "B",
        "slurmctld set the node DOWN because its slurmd does not answer",
        differs=(
            "its jobs are gone; systemd, where it runs slurmd, has tried to start it again by then"
        ),
        settle_s=60,
    ),
    FaultRow(
        "cloud",
        "failed",
        "R1",
        "the cloud calls the instance failed",
        differs="replaced after its jobs: the agent is heard, so they may still run",
        settle_s=60,
        ladder="REPLACE",
    ),
    FaultRow(
        "agent",
        "silent",
        "R1",
        "nothing is heard from the node's agent, so its hardware is watched by nobody",
        differs=(
            "closed to new work after two minutes and given back when the agent is heard "
            "again; a restart after its jobs, then a person: Slurm reaches the node, so no "
            "job is stopped"
        ),
        settle_s=100,
        ladder="REBOOT ASK_HUMAN",
    ),
    FaultRow(
        "slurm",
        "rebooted",
        "R1",
        "slurmctld set the node DOWN because it booted unexpectedly",
        differs="given back once its checks pass on the new boot",
        settle_s=60,
        ladder="NONE",
    ),
    FaultRow("slurm", "silent", "W", "slurmd does not answer slurmctld"),
    FaultRow(
        "slurm",
        "closed",
        "W",
        "slurmctld closed the node by itself",
        differs="shown as Suspect: mostly slurm.conf and the node disagree, which no remedy mends",
    ),
)

UNKNOWN_CHECK = (
    FaultRow(
        "check",
        "failed",
        "W",
        "a check without a rule of its own failed",
        differs="shown as Suspect, never acted on",
    ),
)


_WATCHED = "shown as Suspect: a single slow signal never closes a node"

GREY = (
    *rows(
        "peer",
        (
            "throttle",
            "W",
            "a GPU is throttled by hardware while those of its job's other nodes are not",
        ),
        ("clock", "W", "a busy GPU's clock is far below that of its job's other nodes"),
        ("replay", "W", "a GPU's PCIe link repeats far more than those of its job's other nodes"),
        ("retrans", "W", "EFA sends far more packets again than on its job's other nodes"),
        (
            "remote",
            "W",
            "the EFA of its job's other nodes calls this node unresponsive or impaired",
        ),
        ("vbios", "W", "its GPUs have another VBIOS than most of its job's other nodes"),
        ("persistence", "W", "its GPUs' persistence mode is not as on its job's other nodes"),
        ("setclock", "W", "its GPUs' application clocks are not set as on its job's other nodes"),
        ("rate", "W", "an InfiniBand or RoCE port has another rate than on its job's other nodes"),
        differs=_WATCHED,
    ),
    FaultRow(
        "history",
        "lemon",
        "I",
        "this instance broke again and again in the past weeks",
        differs="advice: test it or give it back to the provider; the node stays in service",
    ),
)
