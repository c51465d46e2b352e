"""What slurmctld's log may say that is a reason to read Slurm, the least urgent first."""

from enum import IntEnum


class SlurmctldLogEvent(IntEnum):
    """The most urgent news of some lines of slurmctld's log."""

    NONE = 0
    JOB = 1
    """A job was submitted, started, changed, requeued or ended."""
    NODE = 2
    """A node changed, or slurmctld started or read its configuration."""
