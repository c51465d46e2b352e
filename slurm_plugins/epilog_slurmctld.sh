#!/bin/sh
# EpilogSlurmctld: tells hpctl's daemon that a job has ended, so that it looks at once and not at
# its next reconcile. In slurm.conf: EpilogSlurmctld=/path/to/epilog_slurmctld.sh
#
# Never delays and never fails a job: it waits for no process and exits 0 in every case. Where no
# daemon runs it does nothing. SlurmUser, which the daemon runs as too, owns the FIFO.

# The daemon's state_dir. slurmctld hands its scripts an environment that it makes, so change
# the default here.
: "${HPCTL_STATE_DIR:=/var/lib/hpctl}"

wake=$HPCTL_STATE_DIR/wake

# Only a FIFO, and opened not to block: with no daemon to read it (ENXIO), or one that reads no
# more (EAGAIN), dd fails at once where the shell's own > would wait. The limit is for a file
# system that hangs.
[ -p "$wake" ] && printf j |
    timeout --kill-after=1 1 dd of="$wake" oflag=nonblock conv=nocreat,notrunc status=none 2>/dev/null

exit 0
