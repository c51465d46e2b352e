"""Where each value of the daemon's configuration comes from: the file and a line, or the default.

A value that a file gives in a shorter form, such as a list in place of a mapping, has the line of
that form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml
from msgspec import Struct
from msgspec.structs import replace

from hpctl.engine.config import Config, ConfigError, convert_config_to_dict, parse_config
from hpctl.engine.database_url import mask_url_password, parse_database_url
from hpctl.toolkit import yaml_files
from hpctl.toolkit.yaml_files import Place

DEFAULT: Final = "default"


class ConfigSetting(Struct, frozen=True):
    """One value. `key`: its dotted name; `line`: of the file, None for a default."""

    key: str
    value: Any
    line: int | None


def list_config_settings(path: str) -> tuple[ConfigSetting, ...]:
    """Read a file; every key with its value and its line. Raises ConfigError."""
    text = yaml_files.read_size_limited_text(path, ConfigError)
    config = parse_config(text, path)
    if config.database_url is not None:
        # The password in it is for the daemon alone.
        config = _hide_database_password(config)
    usual = dict(_flatten_config_keys(convert_config_to_dict(Config())))
    root = _parse_yaml_nodes(text)
    found = []
    for place, value in _flatten_config_keys(convert_config_to_dict(config)):
        line, is_whole = _find_yaml_key_line(root, place)
        if not is_whole and value == usual.get(place, value):
            line = None
        found.append(ConfigSetting(".".join(map(str, place)), value, line))
    return tuple(found)


def _hide_database_password(config: Config) -> Config:
    url = parse_database_url(str(config.database_url))
    return replace(config, database_url=mask_url_password(url))


def _flatten_config_keys(value: Any, place: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield nested keys as places, in the file's order; lists and empty mappings are values."""
    if isinstance(value, Mapping) and (value or not place):
        for key, inner in value.items():
            yield from _flatten_config_keys(inner, (*place, key))
    else:
        yield place, value


def _parse_yaml_nodes(text: str) -> Any:
    """Return the nodes of a YAML text, its merge keys resolved; None for an empty one."""
    loader = yaml.SafeLoader(text)
    root = loader.get_single_node()
    left, visited = [root], set[int]()
    while left:
        node = left.pop()
        if id(node) in visited or not isinstance(node, yaml.MappingNode):
            continue
        visited.add(id(node))
        loader.flatten_mapping(node)
        left += [inner for _, inner in node.value]
    return root


def _find_yaml_key_line(root: Any, place: Place) -> tuple[int | None, bool]:
    """Return the line of the deepest key of a place that is in the file, and whether that is the
    whole place or a shorter form of it."""
    line, node = None, root
    for part in place:
        if not isinstance(node, yaml.MappingNode):
            return line, line is not None
        pairs = [(key, inner) for key, inner in node.value if key.value == str(part)]
        if not pairs:
            return line, False
        line, node = pairs[-1][0].start_mark.line + 1, pairs[-1][1]
    return line, True
