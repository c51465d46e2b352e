"""What NVML answers to the agent's child, how long it takes, and whether nvidia-smi agrees."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.gpu.context import Context

TITLE = "NVML's calls and values"
LIMIT_S = 45
DRY_LIMIT_S = 60
SIDE_BY_SIDE = False
NEEDS = frozenset({"gpu"})

VERSIONS = (
    "nvmlSystemGetDriverVersion",
    "nvmlSystemGetNVMLVersion",
    "nvmlSystemGetCudaDriverVersion_v2",
)
SWEEPS = 20
SWEEP_LIMIT_S = 6.0


def run(context: Context) -> None:
    """Time every call of the child's sweep; compare its values with `nvidia-smi -q -x`."""
    from tests.gpu.nvml_trace import Calls, begin_nvml, noting_driver, read_beside, time_calls
    from tests.gpu.smi import compare_with_smi

    calls = Calls()
    driver = noting_driver(calls)
    began = time.perf_counter()
    begin_nvml(driver)
    init_ms = round(1000 * (time.perf_counter() - began), 2)
    from hpctl.detection.nvml.child import AllGpusReader

    began = time.perf_counter()
    sweep = AllGpusReader(driver, slow_every_s=0.0)
    snapshot = sweep.read()
    first_full_ms = round(1000 * (time.perf_counter() - began), 2)
    context.record("snapshot", snapshot)
    full = time_calls(sweep.read, SWEEPS, SWEEP_LIMIT_S)
    often = time_calls(lambda: _read_often(sweep), SWEEPS, SWEEP_LIMIT_S)
    context.say(
        f"nvmlInit {init_ms} ms, first sweep {first_full_ms} ms, a full sweep "
        f"{full['p50_ms']} ms, an ordinary one {often['p50_ms']} ms (medians)"
    )
    recording = {
        **{name: _ask(driver, name) for name in VERSIONS},
        "init_ms": init_ms,
        "first_full_ms": first_full_ms,
        "full": full,
        "often": often,
        "snapshot": sweep.read(),
        "decodes": decode(snapshot),
        "calls": calls.summary(),
        "fields": calls.fields,
        "errors": calls.errors(),
        "extra": read_beside(),
    }
    context.keep_json("nvml-calls.json", recording)
    context.record("errors", calls.errors())
    context.record("times", {key: recording[key] for key in ("init_ms", "full", "often")})
    context.say(f"calls that fail: {calls.errors() or 'none'}; decoded by the agent: "
                f"{recording['decodes']}")  # fmt: skip
    compare_with_smi(context, sweep, "idle")


def _ask(driver: Any, name: str) -> Any:
    from hpctl.detection.nvml.driver import NvmlCallError

    try:
        return driver.call(name)
    except NvmlCallError as failed:
        return str(failed)


def _read_often(sweep: Any) -> None:
    for gpu in sweep.gpus:
        gpu.read(slow=False)


def decode(snapshot: Any) -> str:
    """Return how many bytes the agent's decoder takes, or why it refuses them."""
    import msgspec

    from hpctl.detection.nvml.client import Message

    raw = msgspec.json.encode({"kind": "sweep", "snapshot": snapshot, "done": time.monotonic()})
    try:
        msgspec.json.Decoder(Message).decode(raw)
    except msgspec.MsgspecError as error:
        return f"refused: {error}"
    return f"ok, {len(raw)} bytes"
