"""What the daemon says to its intake, whichever process serves as the intake at the moment.

The loop, the handler of stacks and the intake's keeper share one `IntakeConnection`. Nothing waits
for the intake: frames are sent on a thread.
"""

import contextlib
import threading
from collections.abc import Mapping

from hpctl.service.intake import channel
from hpctl.toolkit.threads import start_thread_pool
from hpctl.vocabulary.identity import NodeName
from hpctl.wire.stack_request import RankStackTraceRequest


class IntakeConnection:
    """Keeps what an intake has to know, and sends what changes. For any thread but where noted."""

    def __init__(self) -> None:
        """Nothing is sent before `connect`."""
        self._sender = start_thread_pool(1, "intake-send")
        self._channel: channel.IntakeChannel | None = None
        self._addresses: Mapping[NodeName, str] | None = None
        self._orders: Mapping[NodeName, str] = {}
        self._closed = threading.Event()

    def connect(self, end: channel.IntakeChannel) -> None:
        """Talk to the process that was just started, and send it the nodes."""
        self._channel = end
        self._sender.submit(self._send_node_addresses_and_orders)

    def detach_channel(self) -> None:
        """Send nothing until the next process."""
        self._channel = None

    def close(self, *, wait: bool) -> None:
        """Send nothing from now on; with `wait`, once what is being sent is sent."""
        self._closed.set()
        self._sender.shutdown(wait=wait, cancel_futures=True)

    def set_node_addresses(self, addresses: Mapping[NodeName, str]) -> None:
        """Say which nodes Slurm has where, if that is news. For the loop's thread."""
        if addresses is not self._addresses and not self._closed.is_set():
            self._addresses = addresses
            self._sender.submit(self._send_node_addresses_and_orders)

    def set_pending_agent_orders(self, orders: Mapping[NodeName, str]) -> None:
        """Say which orders wait for the agents of these nodes, if that is news. For the loop's
        thread."""
        if orders != self._orders and not self._closed.is_set():
            self._orders = orders
            self._sender.submit(self._send_node_addresses_and_orders)

    def request_stack_traces(self, stacks: Mapping[NodeName, RankStackTraceRequest]) -> None:
        """Have the agents of these nodes asked for stacks, and no others.

        An intake that is started again meanwhile asks no agent: the handler gives up in time.
        """
        if not self._closed.is_set():
            self._sender.submit(self.send, channel.Asks(dict(stacks)))

    def send(self, message: channel.ToIntake) -> None:
        """Send one frame now; it is lost where no intake runs. Waits while the intake is slow."""
        end = self._channel
        if end is not None:
            with contextlib.suppress(OSError):
                end.send(message)

    def _send_node_addresses_and_orders(self) -> None:
        if self._addresses is not None:
            self.send(channel.IntakeNodes(dict(self._addresses), dict(self._orders)))
