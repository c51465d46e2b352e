"""The daemon's orders on a node: opened once, and passed to what carries out their kind."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from hpctl.detection.settings import AgentSettings
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.identity import NodeGeneration
from hpctl.wire import munge
from hpctl.wire.heads import list_trusted_head_node_uids

log = logging.getLogger(__name__)

Handlers = Mapping[type[munge.Order], Callable[[Any], None]]
"""What begins an order, by the order's type; none of them keeps its caller waiting."""


class AgentOrderHandler:
    """A handler of the credentials that orders come in. For the sender's thread."""

    def __init__(self, settings: AgentSettings, handlers: Handlers) -> None:
        self._settings, self._handlers = settings, handlers
        self._last = ""

    def obey(self, credential: str) -> None:
        """Begin what a credential orders; what is not our order, or of no kind that this agent
        carries out, is logged."""
        if credential == self._last:
            return
        settings = self._settings
        mine = NodeGeneration(settings.node, settings.instance, settings.boot)
        try:
            order = munge.decode_order_credential(
                credential, mine, list_trusted_head_node_uids(), settings.munge_socket
            )
        except munge.MungeUnavailable:
            return  # it comes again with the next answer
        except HpctlError as error:
            self._last = credential
            log.warning("an order was refused: %s", error)
            return
        self._last = credential
        begin = self._handlers.get(type(order))
        if begin is None:
            log.warning("this agent carries out no %s", type(order).__name__)
            return
        begin(order)
