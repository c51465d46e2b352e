"""The agent's verdict in the form of NVIDIA Health Validation, for scripts that read that.

NVIDIA documents `overall_severity`, the fields of an affected component, and the exit codes
(docs.nvidia.com/health-validation: getting-started/faq, reference/verdict-schema). The key of the
list, `affected_components`, follows their naming and was not seen in an output; the other parts of
their object are left out.
"""

from collections.abc import Mapping
from typing import Any, Final

NO_VERDICT: Final = 2
"""Their exit code of a run that reached no verdict."""


_LEVELS: Final = ("PASS", "INFO", "WARNING", "UNKNOWN", "CRITICAL")
_SEVERITIES: Final = {
    "ok": "PASS",
    "note": "INFO",
    "warn": "WARNING",
    "unknown": "UNKNOWN",
    "fail": "CRITICAL",
}
_TAKES_OUT_OF_SERVICE: Final = frozenset({"CRITICAL", "UNKNOWN"})


def get_validation_severity_exit_code(severity: str) -> int:
    """Return their exit code: 1 for CRITICAL and UNKNOWN, 0 for PASS, INFO and WARNING.

    Any other word is NO_VERDICT.
    """
    if severity not in _LEVELS:
        return NO_VERDICT
    return int(severity in _TAKES_OUT_OF_SERVICE)


def make_health_validation_document(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the agent's answer to `verdict` as their object, one component for each finding.

    A component is at most as severe as the node: a finding without a rule closes no node.
    """
    overall = str(verdict["overall_severity"])
    components = [
        _make_health_validation_component(finding, overall) for finding in verdict["findings"]
    ]
    return {"overall_severity": overall, "affected_components": components}


def _make_health_validation_component(finding: Mapping[str, Any], overall: str) -> dict[str, Any]:
    severity = _SEVERITIES.get(finding["verdict"], "UNKNOWN")
    check, code, device = finding["check"], finding["code"], finding["device"]
    return {
        "category": check.partition(".")[0],
        "check_ids": [f"{check}.{code}" if code else check],
        "entities": [device] if device else [],
        "max_severity": min(severity, overall, key=_LEVELS.index),
    }
