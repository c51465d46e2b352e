#!/bin/sh
# HealthCheckProgram: prints the verdict of this node's agent, probes nothing and drains nothing. In
# slurm.conf, once every node has this file (docs/install.md):
#
#   HealthCheckProgram=/opt/hpctl/slurm/health_check.sh
#   HealthCheckInterval=60
#
# Exits with 0 also where the node is faulty and where no agent answers: the daemon on the head node
# drains, in the modes in which it may. With --exit-code, for scripts, it exits as NVIDIA Health
# Validation does (hpctl_verdict.c).

: "${HPCTL:=/opt/hpctl/bin/hpctl}"

program=${0%/*}/hpctl_verdict
[ ! -x "$program" ] || exec "$program" "$@"

# hpctl_verdict is not built, because no compiler was here: the command says the same, more slowly.
if [ $# -gt 0 ]; then
    echo "hpctl: no verdict: $program is not built, and without it there are no options"
    exit 2
fi
timeout --kill-after=1 2 "$HPCTL" agent verdict 2>&1
case $? in
0 | 1) ;;
*) echo "hpctl: no verdict: $HPCTL agent verdict failed, or took longer than 2 s" ;;
esac
exit 0
