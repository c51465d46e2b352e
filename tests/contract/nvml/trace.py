"""One full sweep of the NVML child's, with what each call and each field answered, as JSON.

`python -m tests.contract.nvml.trace LIBRARY`: a process of its own, because it loads NVIDIA's
library. LIBRARY is as the child's: for where the loader finds none by itself.
"""

import json
import sys
from typing import Any

import pynvml

from hpctl.agent.nvml.child import Sweep, begin_session
from hpctl.agent.nvml.driver import SWEEP, Driver, InFlight, NvmlFailed


class Tracing(Driver):
    """Notes the return codes of all calls, and of the fields."""

    def __init__(self) -> None:
        super().__init__(pynvml, InFlight.create(), SWEEP)
        self.calls: dict[str, dict[str, int]] = {}
        self.fields: dict[str, dict[str, int | None]] = {}

    def call(self, name: str, *arguments: object, **settings: Any) -> Any:
        code = 0
        try:
            answer = super().call(name, *arguments, **settings)
        except NvmlFailed as failed:
            code = failed.code
            raise
        finally:
            codes = self.calls.setdefault(_label(name, arguments), {})
            codes[str(code)] = codes.get(str(code), 0) + 1
        if name == "nvmlDeviceGetFieldValues":
            for field in answer:
                self.fields[f"{field.fieldId}@{field.scopeId}"] = _of_field(field)
        return answer


def _label(name: str, arguments: tuple[object, ...]) -> str:
    """The call with its selectors, as the recordings spell it."""
    selectors = ",".join(str(word) for word in arguments if isinstance(word, int))
    return f"{name}({selectors})" if selectors else name


def _of_field(field: Any) -> dict[str, int | None]:
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    value = int(getattr(field.value, members[field.valueType])) if field.nvmlReturn == 0 else None
    return {"nvmlReturn": field.nvmlReturn, "valueType": field.valueType, "value": value}


def main() -> None:
    driver = Tracing()
    begin_session(driver, sys.argv[1])
    snapshot = Sweep(driver).read()
    json.dump({"snapshot": snapshot, "calls": driver.calls, "fields": driver.fields}, sys.stdout)


if __name__ == "__main__":
    main()
