"""systemd's protocols for services, sd_notify(3) and sd_listen_fds(3), where it speaks them."""

import os
import socket


def notify_systemd(state: str) -> None:
    """Tell systemd (`READY=1`, `WATCHDOG=1`, `STOPPING=1`). Without $NOTIFY_SOCKET: nothing."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    address = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(1.0)
        try:
            sock.sendto(state.encode(), address)
        except OSError:
            # systemd itself notices a missing message; the agent must not die of it.
            return


def read_watchdog_interval() -> float | None:
    """Return seconds between signs of life, half of what systemd allows; None where it asks for
    none."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", "")
    if not usec.isdecimal() or int(usec) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(usec) / 2e6


_FIRST_PASSED = 3
"""SD_LISTEN_FDS_START."""


def get_systemd_passed_sockets() -> list[socket.socket]:
    """Return the listening sockets that a .socket unit passes to this process; no child inherits
    them."""
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdecimal():
        return []
    # Theirs to pass once: whatever we start must not take them for its own.
    del os.environ["LISTEN_PID"], os.environ["LISTEN_FDS"]
    found = [socket.socket(fileno=_FIRST_PASSED + n) for n in range(int(count))]
    for each in found:
        each.set_inheritable(False)
    return found


def pass_listening_socket_across_exec(listener: int) -> None:
    """Have `get_systemd_passed_sockets` of the program that takes this one's place find a
    socket."""
    os.dup2(listener, _FIRST_PASSED, inheritable=True)
    os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}
