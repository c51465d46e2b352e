"""How results of a node's tests reach what waits for them: a node's recovery, or a burn-in."""

from collections.abc import Callable

from hpctl.engine.view import View
from hpctl.vocabulary.identity import NodeName
from hpctl.vocabulary.model import Finding
from hpctl.vocabulary.policy import RecoveryPolicy

ReadResults = Callable[[str, NodeName, View, RecoveryPolicy], tuple[Finding, ...]]
"""Returns the judged results of the test of that id on that node; nothing until all are there."""


def read_no_results(
    test: str,  # noqa: ARG001
    node: NodeName,  # noqa: ARG001
    view: View,  # noqa: ARG001
    policy: RecoveryPolicy,  # noqa: ARG001
) -> tuple[Finding, ...]:
    """Return no results: for an hpctl that runs no tests."""
    return ()
