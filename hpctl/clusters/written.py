"""A spec as the YAML file that people go on with: its keys explained where they first stand."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel

from hpctl.clusters.spec import ClusterSpec, GroupSpec

WIDTH = 90
"""Columns of a comment."""
SMALL = 60
"""Characters of a list or structure that stands on one line."""


def to_yaml(
    spec: ClusterSpec,
    head: Sequence[str] = (),
    offers: Mapping[str, str] | None = None,
    remarks: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """What `spec.read` takes, and people too.

    `head` are paragraphs above it, or entries of a list, which begin with a dash. `offers` are
    optional keys of a group, each with an example that stands as a comment below the last group;
    `remarks` are comments below a group, by its name.
    """
    lines: list[str] = []
    for text in head:
        lines += [*(["#"] if lines and not text.startswith("- ") else []), *_comment(text)]
    if lines:
        lines.append("")
    said = _said(spec)
    for key, value in said.items():
        lines += _comment(_meaning(ClusterSpec, key))
        if key == "instance_groups":
            lines += ["instance_groups:", *_groups(value, remarks or {})]
            lines += _offers({k for group in value for k in group}, offers or {})
        else:
            lines += _yaml({key: value})
        lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _said(spec: ClusterSpec) -> dict[str, Any]:
    """What a file has to say, the groups last: they are long."""
    said = spec.model_dump(mode="json", by_alias=False, exclude_defaults=True)
    groups = said.pop("instance_groups")
    return {**said, "instance_groups": groups}


def _groups(
    groups: Sequence[Mapping[str, Any]], remarks: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Each group; a key is explained in the first group that has it."""
    explained = {"name"}
    for number, group in enumerate(groups):
        if number:
            yield ""
        lines: list[str] = []
        for key, value in group.items():
            if key not in explained:
                lines += _comment(_meaning(GroupSpec, key))
            explained.add(key)
            lines += _yaml({key: value})
        lines += [f"# {remark}" for remark in remarks.get(group["name"], ())]
        yield from ("  - " + lines[0], *("    " + line for line in lines[1:]))


def _offers(there: set[str], offers: Mapping[str, str]) -> Iterator[str]:
    for key, example in offers.items():
        if key not in there:
            yield from ("    " + line for line in _comment(_meaning(GroupSpec, key)))
            yield from ("    # " + line for line in example.splitlines())


def _meaning(model: type[BaseModel], key: str) -> str:
    return model.model_fields[key].description or ""


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent="# ",
        subsequent_indent="#   " if text.startswith("- ") else "# ",
        break_on_hyphens=False,
    )


def _yaml(said: Mapping[str, Any]) -> list[str]:
    """A key and its value, as people would write them."""
    inside = any(isinstance(value, list | dict) for value in said.values())
    dumper = _Dumper if inside else yaml.SafeDumper
    text: str = yaml.dump(
        dict(said),
        Dumper=dumper,
        default_flow_style=False,
        sort_keys=False,
        allow_unicode=True,
        width=1 << 16,
    )
    return text.splitlines()


class _Dumper(yaml.SafeDumper):
    """Small lists and structures on one line, the others indented below their key."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_sequence(self, *args: Any, **more: Any) -> yaml.SequenceNode:
        node = super().represent_sequence(*args, **more)
        node.flow_style = _small(node.value)
        return node

    def represent_mapping(self, *args: Any, **more: Any) -> yaml.MappingNode:
        node = super().represent_mapping(*args, **more)
        node.flow_style = _small([part for pair in node.value for part in pair])
        return node


def _small(nodes: Sequence[yaml.Node]) -> bool:
    scalars = all(isinstance(node, yaml.ScalarNode) for node in nodes)
    return scalars and sum(len(str(node.value)) + 2 for node in nodes) <= SMALL
