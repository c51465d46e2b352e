#!/bin/sh
# Prolog: keeps a job from a node that hpctl's agent knows to be faulty, before the head node has
# drained it. In slurm.conf: Prolog=/path/to/prolog.sh (with PrologFlags=Alloc, or it runs late).
#
# Reads what the agent knows and probes nothing. It fails for one answer alone: where no agent
# runs, where it does not answer in time, and where hpctl itself is broken, the job starts.
# A Prolog that fails drains the node and puts the job back into the queue.

: "${HPCTL:=/opt/hpctl/bin/hpctl}"

output=$(timeout --kill-after=1 2 "$HPCTL" agent verdict 2>/dev/null)
# The exit code alone does not do: a broken Python exits with 1 too.
case "$?:$output" in
1:*" is faulty"*)
    echo "hpctl: $output" >&2
    exit 1
    ;;
esac
exit 0
