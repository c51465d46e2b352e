"""Rows for what others say: HyperPod's health agent, a site's scripts, plugins and alerts.

What HyperPod's agent writes into its log is shown, and no more. What it marks in Slurm, in the
words on which HyperPod's node recovery acts, is believed: where that recovery is off nobody else
acts on it. What a site's own check means only the site knows: it writes a rule for it
(docs/plugins.md), and until then a failure is `check-failed`.
"""

from __future__ import annotations

from hpctl.core.catalogue_row import Row

_AWS = "not NVIDIA's"
_THEIRS = "shown as Suspect: HyperPod's own recovery acts on it, never hpctl"

OUTSIDE = (
    Row(
        "hma-replace",
        "",
        "X",
        "HyperPod's health agent marked the node Action:Replace",
        _AWS,
    ),
    Row(
        "hma-reboot",
        "",
        "B",
        "HyperPod's health agent marked the node Action:Reboot",
        _AWS,
    ),
    Row(
        "hma-spent",
        "",
        "R1",
        "the node still bears a mark of HyperPod's health agent for what was done since",
        _AWS,
        ladder="NONE",
    ),
    Row(
        "hma-xid",
        "",
        "I",
        "HyperPod's health agent saw an Xid by DCGM's policy",
        _AWS,
        "shown as Suspect: the kernel's own line decides, and this record names no action",
        watch=True,
    ),
    Row(
        "hma-dcgm",
        "",
        "I",
        "HyperPod's health agent saw a DCGM policy violation",
        _AWS,
        _THEIRS,
        watch=True,
    ),
    Row(
        "hma-npd",
        "",
        "I",
        "HyperPod's health agent reports a hardware event",
        _AWS,
        _THEIRS,
        watch=True,
    ),
    Row(
        "hma-npd-XidUserAppError",
        "",
        "I",
        "HyperPod's health agent saw an Xid that it lays on the application",
        _AWS,
    ),
    Row(
        "hma-npd-KernelDeadlock",
        "",
        "I",
        "HyperPod's health agent saw a blocked kernel task, which it counts as software",
        _AWS,
    ),
    Row(
        "hma-condition",
        "",
        "I",
        "HyperPod's health agent reports a node condition",
        _AWS,
        _THEIRS,
        watch=True,
    ),
    Row(
        "hma-event",
        "",
        "I",
        "HyperPod's health agent asks for an action on the node",
        _AWS,
        _THEIRS,
        watch=True,
    ),
    Row(
        "hma-event-NvidiaGpuXidRestartApp",
        "",
        "I",
        "HyperPod's health agent saw an Xid after which the application restarts",
        _AWS,
    ),
    Row(
        "agent-plugins",
        "",
        "I",
        "the agent refuses to run a file in its directory of checks",
        _AWS,
        "shown as Suspect: a check that the site counts on does not run",
        watch=True,
    ),
)
