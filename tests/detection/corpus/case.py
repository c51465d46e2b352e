"""The fault corpus: cases of what a node may show, and what must come of each.

A file in `cases/` is a list of cases, written by us from the documented formats:

    - name: fell off the bus, classic line
      class: gpu-bus                # what kind of fault it is
      source: NVIDIA Xid guide
      kernel: ["NVRM: Xid (PCI:0000:c1:00): 79, pid=7, GPU has fallen off the bus."]
      expect: {urgency: now, remedy: reboot}
    - name: power capping under load
      class: benign
      gpus: {"gpu*.power_mw": 690000, "gpu*.throttle.sw_thermal_ns": {rate: 1e7}}
      for_s: 900
      expect: none

`kernel` lines may begin with `+SECONDS ` (when they come), `xTIMES@SECONDS ` (a storm: so often, so
far apart, `{n}` its number) and `user: ` (written by user space), in this order. `gpus` sets values
of the NVML sweeps of a busy, healthy 8-GPU node; `files` sets files under the machine's root.
`devices` gives the machine so many EFA and Neuron devices in service, and `counters` sets theirs
(`efa0.rx_drops`, `efa*.keep_alive_rcvd`, `efa3.state`). A value is a literal, or
`{rate: R, start: S}` which grows by R a second, or a list of `[SECONDS, value]` which holds from
those seconds on. `hma` are lines of HyperPod's own health agent. `report` are findings that a
script on the node reports. What is expected is `none` (the node is left alone), `suspect` (shown,
and left alone), or an action.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import Struct

from tests.tables import table

HERE = Path(__file__).parent / "cases"


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What happens to the node's jobs, the first remedy, and a rule id where it matters."""

    urgency: str
    remedy: str
    rule: str = ""


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "class"}):
    """One case. `for_s`: how long the machine is watched before the verdict is taken."""

    name: str
    kind: str
    source: str
    expect: Expect | str
    kernel: list[str] = msgspec.field(default_factory=list)
    gpus: dict[str, Any] | None = None
    files: dict[str, Any] | None = None
    devices: dict[str, int] | None = None
    counters: dict[str, Any] = msgspec.field(default_factory=dict)
    expected: dict[str, Any] = msgspec.field(default_factory=dict)
    hma: list[str] = msgspec.field(default_factory=list)
    report: list[dict[str, Any]] = msgspec.field(default_factory=list)
    for_s: float = 180.0
    boot_age_s: float = 86400.0

    @property
    def onset_s(self) -> float:
        """When the fault begins: at the first step of a signal, else with the case."""
        written = [*(self.gpus or {}).values(), *(self.files or {}).values()]
        signals = map(Signal.of, [*written, *self.counters.values()])
        steps = [at for signal in signals for at, _ in signal.steps if at > 0]
        return min(steps, default=0.0)


class Signal(Struct, frozen=True):
    """A value over time."""

    steps: tuple[tuple[float, Any], ...]

    @classmethod
    def of(cls, written) -> Signal:
        """From a case's literal, rate, or list of steps."""
        if isinstance(written, list) and written and isinstance(written[0], list):
            return cls(tuple((float(at), value) for at, value in written))
        return cls(((0.0, written),))

    def at(self, seconds: float):
        """Its value then: a rate grows from the step that begins it, on top of what was there."""
        value: Any = None
        for number, (begin, what) in enumerate(self.steps):
            if begin > seconds:
                break
            until = self.steps[number + 1][0] if number + 1 < len(self.steps) else seconds
            if isinstance(what, dict) and "rate" in what:
                start = what.get("start", value if value is not None else 0)
                value = int(start + float(what["rate"]) * (min(until, seconds) - begin))
            else:
                value = what
        return value


def load(folder: Path = HERE) -> list[Case]:
    """Every case of the corpus. Raises ValueError with file and place for a bad one."""
    cases: list[Case] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            cases += msgspec.convert(table(path), list[Case])
        except (msgspec.ValidationError, yaml.YAMLError) as error:
            raise ValueError(f"{path.name}: {error}") from error
    return cases
