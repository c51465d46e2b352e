"""The JSON schema of cluster.yaml, made from the models that read it."""

from __future__ import annotations

import json
from typing import Any

from hpctl.clusters.spec import ClusterSpec

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def document() -> dict[str, Any]:
    """The schema. What keys must be to each other it does not say: `cluster validate` does."""
    body = ClusterSpec.model_json_schema(by_alias=False)
    _without_titles(body)
    return {"$schema": DRAFT, "title": "hpctl's cluster.yaml", **body}


def text() -> str:
    """The schema as it is published."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


def _without_titles(part: Any) -> None:
    """pydantic titles every field with its own name, which tells nobody anything."""
    if isinstance(part, list):
        for one in part:
            _without_titles(one)
    elif isinstance(part, dict):
        if isinstance(part.get("title"), str):
            part.pop("title")
        for one in part.values():
            _without_titles(one)
