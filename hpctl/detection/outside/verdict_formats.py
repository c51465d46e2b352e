"""The formats in which other tools state a verdict on a node, as one table.

A row says which words of a tool become which verdict, and which function of `verdict_readers` finds
them. A word that is not in its row is `unknown`, and never `ok`. The table is in docs/plugins.md as
well; a test compares both.

A verdict is a finding of the check that read it, `plugin.<file>` or `report.<name>`. It makes a
node Suspect, and hpctl acts on it only by a rule that the site has written. It never ends or
weakens a finding of another check. A remedy that the tool recommends is shown as text.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal, get_args

from msgspec import Struct

from hpctl.detection.check import CheckObservation, CheckResultUnknownError
from hpctl.detection.outside import verdict_readers
from hpctl.detection.outside.verdict_readers import HealthToolOutput, Levels, rank_verdict_severity
from hpctl.vocabulary.model import DeviceVerdict

FormatName = Literal["health-validation", "dcgm-health", "gcm", "nhc", "nvrx", "hyperpod"]


FORMAT_NAMES: Final[tuple[str, ...]] = get_args(FormatName)


MAX_FINDINGS = 64
"""Findings of one output: as many as a plugin of hpctl's own form may print."""


class ToolVerdictFormat(Struct, frozen=True):
    """One row: the tool, what it is run as, its words, and where its form is known from.

    `seen` is false for a form that is known from a manual, and of which no output was at hand.
    """

    tool: str
    run: str
    levels: Levels
    read: Callable[[HealthToolOutput, Levels], list[CheckObservation]]
    source: str
    seen: bool = True


_OK, _NOTE, _WARN = DeviceVerdict.OK, DeviceVerdict.NOTE, DeviceVerdict.WARN
_FAIL, _UNKNOWN = DeviceVerdict.FAIL, DeviceVerdict.UNKNOWN


FORMATS: Final[Mapping[str, ToolVerdictFormat]] = MappingProxyType(
    {
        "health-validation": ToolVerdictFormat(
            "NVIDIA Health Validation",
            "health-validation, its JSON",
            {"PASS": _OK, "INFO": _NOTE, "WARNING": _WARN, "CRITICAL": _FAIL, "UNKNOWN": _UNKNOWN},
            verdict_readers.parse_health_validation_verdict,
            "docs.nvidia.com/health-validation: faq, reference/verdict-schema",
            seen=False,
        ),
        "dcgm-health": ToolVerdictFormat(
            "DCGM's health watches",
            "dcgmi health -g 0 -c -j",
            {"Healthy": _OK, "Warning": _WARN, "Failure": _FAIL},
            verdict_readers.parse_dcgm_health_output,
            "NVIDIA/DCGM: dcgmi/Health.cpp, dcgmi/DcgmiOutput.cpp",
        ),
        "gcm": ToolVerdictFormat(
            "facebookresearch/gcm",
            "health_checks CHECK ... CLUSTER nagios",
            {"OK": _OK, "WARNING": _WARN, "CRITICAL": _FAIL, "UNKNOWN": _UNKNOWN},
            verdict_readers.parse_gcm_check_results,
            "gcm/health_checks: types.py, check_utils/output_context_manager.py",
        ),
        "nhc": ToolVerdictFormat(
            "LBNL NHC",
            "nhc MARK_OFFLINE=0 LOGFILE=-",
            {"failed": _FAIL, "timed out": _UNKNOWN},
            verdict_readers.parse_nhc_failures,
            "mej/nhc: nhc (die, nhcmain_run_checks)",
        ),
        "nvrx": ToolVerdictFormat(
            "nvidia-resiliency-ext",
            "the script behind nvhcd, or the answer of its RunHealthCheck as JSON",
            {"fail_count 0": _OK, "failed_checks": _FAIL},
            verdict_readers.parse_nvrx_health_result,
            "nvidia-resiliency-ext: shared_utils/health_check.py, proto/nvhcd.proto",
        ),
        "hyperpod": ToolVerdictFormat(
            "AWS's health checks for HyperPod",
            "dcgm.sh, or another script that prints HEALTH_CHECK_RESULT",
            {"Passed": _OK, "Failed": _FAIL, "Skipped": _UNKNOWN},
            verdict_readers.parse_hyperpod_health_result,
            "awsome-distributed-ai: 5.sagemaker-hyperpod/health_check",
        ),
    }
)


def parse_health_tool_verdict(name: str, output: HealthToolOutput) -> tuple[CheckObservation, ...]:
    """Return what a tool's output says of this node, without what is in order.

    The worst come first, one for each code and device. Raises CheckResultUnknownError for an output
    that is not in the named format, and for a tool that a signal ended.
    """
    form = FORMATS[name]
    if output.status is not None and output.status < 0:
        raise CheckResultUnknownError(f"was ended by signal {-output.status}")
    found = form.read(output, form.levels)
    found.sort(key=lambda one: -rank_verdict_severity(one.verdict))
    kept: dict[tuple[str, str], CheckObservation] = {}
    for one in found:
        if one.verdict is not DeviceVerdict.OK:
            kept.setdefault((one.code, one.device), one)
    return tuple(kept.values())[:MAX_FINDINGS]
