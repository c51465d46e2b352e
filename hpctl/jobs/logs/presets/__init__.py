"""Rules for the logs of known frameworks: one YAML file each, to be used by name or copied."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.resources import files

from hpctl.errors import HpctlError
from hpctl.jobs.logs.rules import RuleSet, parse

NAMES = ("deepspeed", "hf", "lightning", "megatron", "nemo", "s3-uploads", "torchtitan")


class NoSuchPreset(HpctlError):
    """The name is no preset's."""


def preset(name: str) -> RuleSet:
    """The rules of one preset. Raises NoSuchPreset with the nearest names."""
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=2)
        known = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(NAMES)}"
        raise NoSuchPreset(f"no preset is called {name!r}", known)
    return parse(text(name), f"preset {name}")


def text(name: str) -> str:
    """A preset's YAML as it stands in its file."""
    return files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
