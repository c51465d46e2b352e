"""The NVML child's sweep against a driver in Python: its shape, and what it asks how often."""

import ast
import sys
import types
import typing
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from hpctl.detection.nvml import snapshot
from hpctl.detection.nvml.child import AllGpusReader
from hpctl.detection.nvml.driver import BATCH, SWEEP, DriverCallsInFlight, NvmlDriver
from tests.process import run_text


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value


class Anything:
    """A struct whose every number is 1."""

    clusterUuid = bytes(16)

    def __getattr__(self, name: str) -> int:
        return 1


class Nvml:
    """A driver that answers all there is, and counts who asks for what."""

    NVMLError = NVMLError
    byref = staticmethod(lambda struct: struct)

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.batches: list[int] = []
        self.answers = {
            "nvmlDeviceGetCount": 2,
            "nvmlDeviceGetUUID": "GPU-1",
            "nvmlDeviceGetName": "one",
            "nvmlDeviceGetPciInfo": Anything(),
            "nvmlDeviceGetMigMode": [1, 0],
            "nvmlDeviceGetUtilizationRates": Anything(),
            "nvmlDeviceGetRowRemapperHistogram": Anything(),
            "nvmlDeviceGetComputeRunningProcesses": [Anything()],
            "nvmlDeviceGetVbiosVersion": "96.00.74.00.01",
        }

    def __getattr__(self, name: str):
        if name.startswith("c_nvml"):
            return Anything

        def call(*arguments):
            self.asked[name] += 1
            if name == "nvmlDeviceGetFieldValues":
                self.batches.append(len(arguments[1]))
                value = types.SimpleNamespace(uiVal=3)
                return [
                    types.SimpleNamespace(fieldId=field, nvmlReturn=0, valueType=1, value=value)
                    for field in arguments[1]
                ]
            answer = self.answers.get(name, 1)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


@pytest.fixture
def page():
    page = DriverCallsInFlight.create()
    yield page
    page.close()


def shape(kind):
    """The names that a dataclass has, at every depth."""
    arguments = [a for a in typing.get_args(kind) if a not in (type(None), Ellipsis)]
    if arguments:
        return shape(arguments[0])
    if not isinstance(kind, type) or not issubclass(kind, msgspec.Struct):
        return None
    hints = typing.get_type_hints(kind)
    return {name: shape(hints[name]) for name in kind.__struct_fields__}


def found_shape(value):
    if isinstance(value, list):
        return found_shape(value[0])
    if isinstance(value, dict):
        return {name: found_shape(inner) for name, inner in value.items()}
    return None


def test_a_sweep_has_exactly_the_fields_of_a_snapshot(page):
    found = AllGpusReader(NvmlDriver(Nvml(), page, SWEEP)).read()
    wanted = shape(snapshot.NvmlSnapshot)
    del wanted["events"], wanted["error"], wanted["gpus"]["error"]  # not where all is well
    assert found_shape(found) == wanted
    decoded = msgspec.json.decode(msgspec.json.encode(found), type=snapshot.NvmlSnapshot)
    assert decoded.gpus[1].nvlinks[0].active is True
    assert (decoded.gpus[0].remap.banks_none, decoded.gpus[0].recovery_action) == (1, 3)
    assert decoded.gpus[0].mig is True


def test_what_costs_most_is_asked_seldom_and_repeated(page):
    nvml = Nvml()
    sweep = AllGpusReader(NvmlDriver(nvml, page, SWEEP), slow_every_s=1000.0)
    first = sweep.read()
    asked = nvml.asked["nvmlDeviceGetNvLinkState"]
    assert asked == 2 * 3
    second = sweep.read()
    assert nvml.asked["nvmlDeviceGetNvLinkState"] == asked
    assert nvml.asked["nvmlDeviceGetUtilizationRates"] == 2 * 2
    assert second["gpus"][0]["nvlinks"] == first["gpus"][0]["nvlinks"]
    assert second["slow_at"] == first["slow_at"] == first["at"] < second["at"]
    assert max(nvml.batches) <= BATCH


def test_an_older_binding_that_lacks_a_function_says_less(page):
    class Old(Nvml):
        def __getattr__(self, name: str):
            if name in ("nvmlDeviceGetMarginTemperature", "c_nvmlEccSramErrorStatus_v1_t"):
                raise AttributeError(name)
            return super().__getattr__(name)

    gpu = AllGpusReader(NvmlDriver(Old(), page, SWEEP)).read()["gpus"][0]
    assert gpu["temperature_margin_c"] is None
    assert gpu["ecc"]["sram_threshold_exceeded"] is None


def test_the_child_loads_little_and_nothing_else_loads_pynvml():
    code = (
        "import sys\n"
        "import {module}\n"
        "print(sorted(set(sys.modules) & {{'pynvml', 'dataclasses', 'msgspec', 'asyncio',"
        " 'pathlib', 'subprocess', 'logging', 'inspect', 'typing'}}))"
    )

    def loaded(module: str) -> set[str]:
        args = [sys.executable, "-S", "-c", code.format(module=module)]
        env = {"PYTHONPATH": ":".join([str(Path(__file__).parents[3]), *sys.path])}
        return set(ast.literal_eval(run_text(args, env=env, check=True).stdout))

    assert loaded("hpctl.detection.nvml.child") == set()
    assert "pynvml" not in loaded("hpctl.detection.nvml.client")


@pytest.mark.parametrize(("code", "corrupt"), [(14, True), (3, None), (None, False)])
def test_the_inforom_is_validated_once_a_session(page, code, corrupt):
    nvml = Nvml()
    if code is not None:
        nvml.answers["nvmlDeviceValidateInforom"] = nvml.NVMLError(code)
    sweep = AllGpusReader(NvmlDriver(nvml, page, SWEEP))
    assert sweep.read()["gpus"][0]["inforom_corrupt"] is corrupt
    assert sweep.read()["gpus"][0]["inforom_corrupt"] is corrupt
    assert nvml.asked["nvmlDeviceValidateInforom"] == len(sweep.gpus)
