"""The JSON schema of cluster.yaml, which editors check a file with while it is written."""

import ast
import inspect
import json
import textwrap
from collections.abc import Mapping
from datetime import datetime
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo

from hpctl.clusters.spec.cluster import ClusterSpec
from hpctl.clusters.spec.field_types import SpecSection, TextPattern

DRAFT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN: dict[Any, dict[str, Any]] = {
    int: {"type": "integer"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
}


def format_cluster_spec_schema() -> str:
    """Return the schema as it is published."""
    return json.dumps(make_cluster_spec_json_schema(), indent=2, ensure_ascii=False) + "\n"


def make_cluster_spec_json_schema() -> dict[str, Any]:
    """Return the schema. The rules between keys are not in it: `cluster validate` has them."""
    parts: dict[str, Any] = {}
    body = _make_section_schema(ClusterSpec, parts)
    head = {"$schema": DRAFT, "title": "hpctl's cluster.yaml"}
    return {**head, "$defs": dict(sorted(parts.items())), **body}


@cache
def read_spec_field_docs(kind: type[SpecSection]) -> Mapping[str, str]:
    """Return what a section's source says below each field."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for field, text in zip(body.body, body.body[1:], strict=False):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[field.target.id] = inspect.cleandoc(str(text.value.value))
    return found


def _make_section_schema(kind: type[SpecSection], parts: dict[str, Any]) -> dict[str, Any]:
    docs, properties, required = read_spec_field_docs(kind), {}, []
    for field in msgspec.structs.fields(kind):
        entry = _make_value_schema(field.type, parts)
        if field.required:
            required.append(field.name)
        if field.name in docs:
            entry["description"] = docs[field.name]
        entry |= _make_schema_default_entry(field)
        properties[field.name] = dict(sorted(entry.items()))
    found: dict[str, Any] = {
        "additionalProperties": False,
        "description": inspect.cleandoc(kind.__doc__ or ""),
        "properties": properties,
    }
    if required:
        found["required"] = required
    return {**found, "type": "object"}


def _make_schema_default_entry(field: FieldInfo) -> dict[str, Any]:
    if field.default is not msgspec.NODEFAULT:
        return {"default": msgspec.to_builtins(field.default)}
    made = None if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return {"default": msgspec.to_builtins(made)} if isinstance(made, Struct) else {}


def _make_value_schema(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a type; of a section it is a reference to its part."""
    if get_origin(kind) in (Union, UnionType):
        inner = [one for one in get_args(kind) if one is not type(None)]
        return {"anyOf": [*(_make_value_schema(one, parts) for one in inner), {"type": "null"}]}
    base, *meta = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    found = _make_base_type_schema(base, parts)
    for one in meta:
        found |= (
            _make_pattern_schema(one)
            if isinstance(one, TextPattern)
            else _make_schema_bounds(one, found["type"])
        )
    return dict(sorted(found.items()))


def _make_base_type_schema(kind: Any, parts: dict[str, Any]) -> dict[str, Any]:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        choice = {"enum": list(inner)} if inner[1:] else {"const": inner[0]}
        return {**choice, "type": "string"}
    if origin is tuple:
        return {"items": _make_value_schema(inner[0], parts), "type": "array"}
    if origin is Mapping:
        return _make_mapping_schema(inner[0], inner[1], parts)
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if kind.__name__ not in parts:
        parts[kind.__name__] = {}
        parts[kind.__name__] = _make_section_schema(kind, parts)
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _make_mapping_schema(key: Any, value: Any, parts: dict[str, Any]) -> dict[str, Any]:
    if value is Any:
        return {"additionalProperties": True, "type": "object"}
    like = next(one for one in get_args(key) if isinstance(one, TextPattern))
    names = _make_pattern_schema(like)
    pattern = names.pop("pattern")
    return {
        "patternProperties": {pattern: _make_value_schema(value, parts)},
        "propertyNames": dict(sorted(names.items())),
        "type": "object",
    }


def _make_pattern_schema(like: TextPattern) -> dict[str, Any]:
    example = like.means.partition(" such as ")[2].removesuffix(" (quote it)")
    return {
        **({"examples": [example]} if example else {}),
        "pattern": f"^({like.pattern})$",
        "minLength": like.shortest,
        "maxLength": like.longest,
    }


def _make_schema_bounds(meta: Meta, kind: str) -> dict[str, Any]:
    size = {"array": "Items", "object": "Properties", "string": "Length", "integer": ""}[kind]
    bounds = {
        "minimum": meta.ge,
        "maximum": meta.le,
        f"min{size}": meta.min_length,
        f"max{size}": meta.max_length,
    }
    return {name: bound for name, bound in bounds.items() if bound is not None}
