"""All checks on one file: gather side by side, judge, every verdict at once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from hpctl.clusters.spec import ClusterSpec
from hpctl.clusters.validate import (
    bucket,
    capacity,
    living,
    model_facts,
    network,
    quota,
    role,
    script_facts,
    scripts,
    security,
    spec_rules,
    storage,
    wanted,
)
from hpctl.clusters.validate.facts import GATHERS, Facts
from hpctl.clusters.validate.model_facts import ServiceModel
from hpctl.clusters.validate.verdict import Family, Level, Verdict
from hpctl.ports import Aws

FAMILIES: tuple[Family, ...] = (
    spec_rules.FAMILY,
    scripts.FAMILY,
    living.FAMILY,
    network.FAMILY,
    security.FAMILY,
    capacity.FAMILY,
    storage.FAMILY,
    bucket.FAMILY,
    role.FAMILY,
    quota.FAMILY,
)
"""In the order in which they are shown."""

AT_ONCE = 8
"""Parts that are gathered side by side."""

Told = Callable[[str, int, int], None]
"""Told after each part: its name, how many are done, how many there are."""


def validate(
    aws: Aws | None,
    spec: ClusterSpec,
    *,
    model: ServiceModel | None = None,
    scripts: Path | None = None,
    only: Collection[str] = (),
    told: Told = lambda _name, _done, _all: None,
) -> tuple[Verdict, ...]:
    """What every check says of a spec, in the families' order.

    Without `aws` only what needs no credentials is checked, without `model` or `scripts` nothing
    that needs them. `only` names families. A call that fails makes verdicts UNKNOWN. Raises
    HpctlError where no region is named, OSError where `scripts` cannot be read.
    """
    chosen = [f for f in FAMILIES if (not only or f.name in only) and (aws or f.offline)]
    needs = {part for family in chosen for part in family.needs}
    wants = wanted.of_spec(spec)
    facts = Facts(region=aws.region if aws else "")
    if model and "model" in needs:
        facts = replace(facts, model=model_facts.gather(model, wants.request))
    if scripts and "scripts" in needs:
        facts = replace(facts, scripts=script_facts.gather(scripts))
    if aws:
        facts = _gathered(aws, wants, facts, sorted(needs & GATHERS.keys()), told)
    return tuple(v for family in chosen for v in family.verdicts(wants, facts))


def _gathered(
    aws: Aws, wants: wanted.Wanted, facts: Facts, parts: Sequence[str], told: Told
) -> Facts:
    found = {}
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="validate") as pool:
        asked = {pool.submit(GATHERS[part], aws, wants): part for part in parts}
        for done in as_completed(asked):
            found[asked[done]] = done.result()
            told(asked[done], len(found), len(parts))
    return replace(facts, **found)


def worst(verdicts: Sequence[Verdict]) -> Level:
    """OK for none. A FAIL outweighs what could not be told, which outweighs a warning."""
    levels = {verdict.level for verdict in verdicts}
    for level in (Level.FAIL, Level.UNKNOWN, Level.WARN):
        if level in levels:
            return level
    return Level.OK
