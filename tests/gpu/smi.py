"""The agent's values of the first GPU beside nvidia-smi's, as a recording and on the page."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from tests.gpu.context import Context


def compare_with_smi(context: Context, sweep: Any, label: str) -> None:
    """Compare the first GPU's values with what nvidia-smi prints between two sweeps."""
    from tests.detection.nvml.contract.smi_fields import DIFFERS, ONLY_SMI, compare

    before = _read_first_gpu(sweep)
    smi = context.run(["nvidia-smi", "-q", "-x"], 15)
    after = _read_first_gpu(sweep)
    context.keep(f"smi-{label}.xml", smi.out)
    context.record("smi_took_s", smi.took_s)
    try:
        element = ElementTree.fromstring(smi.out[smi.out.index("<nvidia_smi_log") :]).find("gpu")
    except (ElementTree.ParseError, ValueError) as error:
        context.say(f"nvidia-smi -q -x cannot be read: {error}; {smi.err[-200:]}")
        return
    if element is None:
        context.say("nvidia-smi -q -x lists no GPU")
        return
    rows = compare(before, element, after)
    context.keep_json(f"compared-{label}.json", [row.recording() for row in rows])
    counts = dict(Counter(row.verdict for row in rows))
    context.record("compared", counts)
    context.say(f"fields of hpctl and of nvidia-smi, {label}: {counts}")
    for row in rows:
        if row.verdict in (DIFFERS, ONLY_SMI):
            context.say(f"{row.field} {row.verdict}: hpctl {row.nvml}, nvidia-smi {row.text}")


def _read_first_gpu(sweep: Any) -> Any:
    import msgspec

    from hpctl.detection.nvml.snapshot import NvmlSnapshot

    return msgspec.convert(sweep.read(), NvmlSnapshot).gpus[0]
