"""What systemd learns of the daemon: that it starts, is ready, lives and stops."""

from hpctl.wire.systemd import notify_systemd

WAITING = "EXTEND_TIMEOUT_USEC=120000000\nSTATUS="
"""Instead of READY=1: a start takes as long as slurmctld or a database needs, in steps of two
minutes."""


def extend_start_timeout(status: str) -> None:
    """Ask for two more minutes to start, and say what the start waits for."""
    notify_systemd(WAITING + status)


class ReadinessNotifier:
    """Ready once Slurm was read, or as a standby; before that the start is extended."""

    def __init__(self) -> None:
        """Not ready yet."""
        self._ready = False

    def announce_standby(self) -> None:
        """Ready, without the lease."""
        self._ready = True
        notify_systemd("READY=1\nSTATUS=standby: follows the journal")

    def announce_leader(self) -> None:
        """A standby took over."""
        notify_systemd("STATUS=leader")

    def announce_ready_on_slurm_read(self) -> None:
        """Ready, the first time; the daemon serves agents and acts on what it knows before."""
        if not self._ready:
            self._ready = True
            notify_systemd("READY=1\nSTATUS=")

    def announce_stop_or_handover(self, *, stopping: bool) -> None:
        """Tell systemd that the daemon stops, or hands over and continues as a standby."""
        notify_systemd("STOPPING=1" if stopping else "STATUS=handing over")

    def send_watchdog_keepalive(self) -> None:
        """Feed the watchdog; while the daemon is not ready, extend the start."""
        if self._ready:
            notify_systemd("WATCHDOG=1")
        else:
            extend_start_timeout("waiting until Slurm answers")
