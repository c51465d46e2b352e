"""Kernel lines. Limits of the kernel that are reached."""

import re

from hpctl.detection.kernel.line import Family, Line, line
from hpctl.detection.kernel.network_cards import CARD_HEADS, gather_cards
from hpctl.detection.kmsg import Record

# Limits of the kernel and its network that were reached, and transmit queues that stopped.
#
#     VFS: file-max limit 1048576 reached                                     (fs/file_table.c)
#     nf_conntrack: nf_conntrack: table full, dropping packet                 (net/netfilter)
#     neighbour: arp_cache: neighbor table overflow!                          (net/core/neighbour.c)
#     TCP: out of memory -- consider tuning tcp_mem                           (net/ipv4/tcp.c)
#     unregister_netdevice: waiting for veth1 to become free. Usage count = 2
#     ena 0000:00:05.0 eth0: Keep alive watchdog timeout.                     (amzn-drivers)
#     NETDEV WATCHDOG: eth0 (ena): transmit queue 3 timed out                 (net/sched, to 6.6)
#     ena 0000:00:05.0 eth0: NETDEV WATCHDOG: CPU: 3: transmit queue 3 timed out 5412 ms   (since)
#
# A job can fill each of these, and the driver resets the queue: all are worth watching.

LIMITS_CHECK = "kernel.limits"


LIMITS_HEADS = (
    *("VFS:", "nf_c", "ip_c", "neig", "TCP:", "NETD", "ena ", "unre"),
    *(f"ib{n}:" for n in range(10)),
)


LIMITS_WORDS = ("NETDEV WATCHDOG: ",)


_REACHED = re.compile(
    r"(?P<files>VFS: file-max limit \d+ reached)"
    r"|(?P<conntrack>(?:(?:nf|ip)_conntrack: ){1,2}table full(?: in netns \w+)?, dropping packet)"
    r"|(?P<neighbors>(?:neighbour: )?\w+: neighbou?r table overflow)"
    r"|(?P<sockets>TCP: (?:out of memory|too many orphaned sockets))"
    r"|(?P<netdevice>unregister_netdevice: waiting for \S{1,15} to become free)"
    r"|(?P<reset>ena [0-9a-f:.]+(?: [\w.@-]{1,15})?: (?:Keep alive watchdog timeout"
    r"|Trigger reset is on|Transmit time ?out|Device reset failed|Reset attempt failed"
    r"|ENA admin queue is not|ENA device init failed|.{0,100}Reset the device))"
    r"|(?P<queue>(?P<ipoib>ib\d): transmit timeout"
    r"|(?:[\w.-]+ [0-9a-f:.]+ (?P<device>[\w.@-]{1,15}): )?NETDEV WATCHDOG: (?:CPU: \d+: "
    r"|(?P<older>[\w.@-]{1,15}) \([\w-]*\): )transmit queue \d+ timed out)"
)


def gather_limits(record: Record) -> Line | None:
    """Which limit, and of which network device."""
    if (match := _REACHED.match(record.text)) is None:
        return None
    code = next(name for name in _LIMITS if match[name] is not None)
    return line(
        LIMITS_CHECK, code, record, match["device"] or match["older"] or match["ipoib"] or ""
    )


_LIMITS = ("files", "conntrack", "neighbors", "sockets", "netdevice", "reset", "queue")


CARDS = Family(gather_cards, CARD_HEADS)


LIMITS = Family(gather_limits, LIMITS_HEADS, LIMITS_WORDS)
