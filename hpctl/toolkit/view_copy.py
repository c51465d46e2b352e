"""A view made from a value with fields of the same names."""

from __future__ import annotations

from typing import Any, TypeVar

from msgspec import Struct

V = TypeVar("V", bound=Struct)


def build_view_from_source(view: type[V], source: object, /, **own: Any) -> V:
    """Return a view with the source's values for its fields of the same names, beside its `own`."""
    names = [name for name in view.__struct_fields__ if name not in own]
    return view(**{name: getattr(source, name) for name in names}, **own)
