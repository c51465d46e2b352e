"""What a cluster file must not mix: `mixtures.yaml`, and the files that it stands for."""

import json
from typing import Any, NamedTuple

from tests.tables import beside

Keys = dict[str, Any]
DATA = beside(__file__)
HEAD, GPU = DATA["head"], DATA["gpu"]


def cluster(*groups: Keys, **top) -> str:
    """A file with a line for each key, and one for each group."""
    keys = "".join(f"{key}: {json.dumps(value)}\n" for key, value in top.items())
    listed = "".join(f"  - {json.dumps(one)}\n" for one in groups)
    return f"name: demo\n{keys}instance_groups:\n{listed}"


class Mixture(NamedTuple):
    """`says` is a part of hpctl's one problem. `refused`: the service refuses it as well."""

    says: str
    groups: list[Keys]
    top: Keys
    refused: bool

    @classmethod
    def of(cls, says: str, groups: list[Keys], top: Keys | None = None, refused: bool = False):
        """From what the file says."""
        kept = [{k: v for k, v in group.items() if v is not None} for group in groups]
        return cls(says, kept, top or {}, refused)


MIXTURES = [Mixture.of(**one) for one in DATA["mixtures"]]
