#!/bin/sh
# Prolog: keeps a job from a node that hpctl's agent knows to be faulty, before the head node has
# drained it. In slurm.conf:
#
#   Prolog=/path/to/prolog.sh
#   PrologFlags=Alloc                              (without it the Prolog runs with the first step)
#   SchedulerParameters=nohold_on_prolog_fail      (in every Slurm from 22.05 on)
#
# Reads what the agent knows and probes nothing. It fails for one answer alone: where no agent
# runs, where it does not answer in time, and where hpctl itself is broken, the job starts.
#
# A Prolog that fails drains the node. Slurm puts a batch job back into the queue: to start again
# with nohold_on_prolog_fail, and held until a user releases it without. It cancels the job of
# salloc and srun. So a faulty node fails the Prolog only of a batch job, and only with that option:
# every other job starts, and the head node treats the node under it.

: "${HPCTL:=/opt/hpctl/bin/hpctl}"
: "${SLURM_CONF:=/etc/slurm/slurm.conf}"

output=$(timeout --kill-after=1 2 "$HPCTL" agent verdict 2>/dev/null)
# The exit code alone does not do: a broken Python exits with 1 too.
case "$?:$output" in
1:*" is faulty"*) ;;
*) exit 0 ;;
esac

# slurm.conf and the files that it includes, one a line.
conf_files() {
    echo "$SLURM_CONF"
    sed -En 's/^[[:space:]]*include[[:space:]]+([^[:space:]#]+).*/\1/Ip' "$SLURM_CONF" |
        while read -r name; do
            case "$name" in
            /*) echo "$name" ;;
            *) echo "${SLURM_CONF%/*}/$name" ;;
            esac
        done
}

if [ -z "$SLURM_JOB_STDIN$SLURM_JOB_STDOUT" ]; then
    echo "hpctl: $output; the job starts, for Slurm would cancel one that is no batch job" >&2
    exit 0
fi
option='^[[:space:]]*SchedulerParameters[[:space:]]*=[^#]*nohold_on_prolog_fail'
if conf_files 2>/dev/null | tr '\n' '\0' | timeout --kill-after=1 2 xargs -0 cat -- 2>/dev/null |
    grep -Eiq "$option"; then
    echo "hpctl: $output" >&2
    exit 1
fi
echo "hpctl: $output; the job starts, for Slurm would hold it:" \
    "SchedulerParameters lacks nohold_on_prolog_fail" >&2
exit 0
