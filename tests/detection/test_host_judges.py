"""What each host check says of the samples of `host_cases.yaml`, at each limit and just below."""

from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import yaml
from msgspec import Struct

from hpctl.detection.runner import load_check
from hpctl.faults.table import CHECKS
from hpctl.vocabulary.model import DeviceVerdict

TABLE = yaml.safe_load(Path(__file__).with_name("host_cases.yaml").read_text())
LOADED = {spec.name: load_check(spec) for spec in CHECKS if spec.name in TABLE}


def sample(kind, value):
    """A sample of this type: a mapping or a list of its fields, or a list of such samples."""
    if get_origin(kind) is tuple:
        return tuple(sample(get_args(kind)[0], one) for one in value)
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return tuple(value) if isinstance(value, list) else value
    hints = get_type_hints(kind)
    given = value if isinstance(value, dict) else dict(zip(hints, value, strict=False))
    return kind(**{name: sample(hints[name], one) for name, one in given.items()})


@pytest.mark.parametrize(
    ("check", "row"), [(check, row) for check, rows in TABLE.items() for row in rows], ids=str
)
def test_what_is_reported(check: str, row: list[Any]) -> None:
    *samples, expected = row if isinstance(row[-1], str) or row[-1] is None else [*row, ""]
    one = LOADED[check]
    kind = get_type_hints(one.judge)["seen"]
    before, seen = [None, *(sample(kind, value) for value in samples)][-2:]
    found = [
        f"{'warn:' * (o.verdict is DeviceVerdict.WARN)}{o.code}@{o.device}".rstrip("@")
        for o in one.judge(seen, before, one.limits)
    ]
    assert found == (expected or "").split()
