"""`hpctl config show`: the configuration that is in effect, and where each value comes from."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import click
from msgspec import Struct

from hpctl.engine import config_loading
from hpctl.toolkit import output
from hpctl.toolkit.declared_view import Column, Columns, JsonOnly, Layout, RowTable
from hpctl.toolkit.errors import HpctlError

DEFAULT = "default"
"""The source of a value that no file gives."""


class ConfigKeyView(Struct, frozen=True):
    """One value. `key`: its dotted name. `source`: `default`, or the file and the line."""

    key: str
    value: Any
    source: str

    columns: ClassVar[Columns] = (
        Column("KEY", "key"),
        Column("VALUE", lambda row: _format_config_value(row.value), fold=True),
        Column("SOURCE", "source"),
    )


def _format_config_value(value: Any) -> str:
    """A value as the file would have it; text without quotes."""
    return value if isinstance(value, str) else json.dumps(value)


class ConfigView(Struct, frozen=True):
    """What `hpctl config show` shows."""

    path: str
    keys: tuple[ConfigKeyView, ...]

    layout: ClassVar[Layout] = (RowTable("keys", otherwise="Every key has its default."),)
    json_only: ClassVar[JsonOnly] = ("path",)


@click.command()
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@click.option("--changed", is_flag=True, help="Leave out what has its default.")
@output.json_option
@output.config_option
def show(keys: tuple[str, ...], changed: bool, config: str, as_json: bool) -> None:
    """Print every key with its value, and where that comes from.

    KEY is a key or the beginning of a dotted name, such as `budgets`. What the daemon took at its
    last start or reload is in `hpctl journal audit`; `systemctl reload hpctl-daemon` applies a
    changed file.
    """
    from hpctl.engine.config_sources import list_config_settings

    config_loading.load_config(config)
    found = list_config_settings(config)
    for key in keys:
        if not any(_is_key_in_section(one.key, key) for one in found):
            raise _make_unknown_key_error(key, [one.key for one in found])
    rows = []
    for one in found:
        if keys and not any(_is_key_in_section(one.key, key) for key in keys):
            continue
        source = f"{config}:{one.line}" if one.line else DEFAULT
        rows.append(ConfigKeyView(one.key, one.value, source))
    if changed:
        rows = [row for row in rows if row.source != DEFAULT]
    output.show_view("config-show", ConfigView(config, tuple(rows)), as_json)


def _is_key_in_section(key: str, wanted: str) -> bool:
    return key == wanted or key.startswith(f"{wanted}.")


def _make_unknown_key_error(key: str, known: list[str]) -> HpctlError:
    sections = dict.fromkeys(one.partition(".")[0] for one in known)
    hint = output.suggest_similar_names(
        key, dict.fromkeys([*sections, *known]), "`hpctl config show` lists the keys"
    )
    return HpctlError(f"the configuration has no key {key!r}", hint)
