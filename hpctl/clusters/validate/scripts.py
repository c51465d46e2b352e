"""Lifecycle scripts on this machine, before they are uploaded."""

from __future__ import annotations

from collections.abc import Iterator

from hpctl.clusters.validate import script_rules
from hpctl.clusters.validate.facts import Facts
from hpctl.clusters.validate.script_facts import CONFIG, PARAMETERS
from hpctl.clusters.validate.verdict import Check, Family, Finding, Place, fail, settled, warn
from hpctl.clusters.validate.wanted import Wanted


def entries(wanted: Wanted) -> dict[str, Place]:
    """Each entry point that a group names, with the first place that names it."""
    found: dict[str, Place] = {}
    for group in wanted.groups:
        for key, name in group.scripts:
            found.setdefault(name, group.at("LifeCycleConfig", key))
    return found


def entry_point(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """The entry points are there, executable, and say what runs them."""
    here = facts.scripts
    for name, place in entries(wanted).items() if here.directory else ():
        script = here.files.get(name)
        if script is None:
            yield fail(
                place,
                f"there is no {name} in {here.directory}",
                "check the name, or name another directory in --scripts",
            )
            continue
        found = script_rules.of_entry(script, here.directory, place)
        yield from settled(found, f"{here.directory}/{name} can be run", place)


def readable(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Line ends, byte order marks and syntax of every script in the directory."""
    yield from _all(wanted, facts, script_rules.of_any, "scripts have LF line ends and parse")


def modes(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """Scripts with a #! line are executable."""
    yield from _all(wanted, facts, script_rules.of_modes, "")


def parameters(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """provisioning_parameters.json is there where it is needed, and names the groups."""
    here = facts.scripts
    places = [group.at("LifeCycleConfig") for group in wanted.groups if group.lifecycle]
    # Where the API sets Slurm up a bundle is made without the file; it matters in the bucket.
    if not here.directory or not places or PARAMETERS not in here.files:
        return
    yield from settled(
        script_rules.of_parameters(here.files[PARAMETERS], here.directory, places[0], wanted),
        f"{PARAMETERS} agrees with the groups",
        places[0],
    )


def roles(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """The same of a bundle on this machine; the roles of scripts that are none come with it."""
    here = facts.scripts
    groups = [group for group in wanted.groups if group.lifecycle] if wanted.by_api else []
    yield from script_rules.of_roles(here.files.get(CONFIG), here.files, here.directory, groups)


def wheels(wanted: Wanted, facts: Facts) -> Iterator[Finding]:
    """hpctl can be installed from the wheels of a bundle, on nodes that it is for."""
    place = next(iter(entries(wanted).values()), ())
    for why in facts.scripts.unfit:
        mend = "make the bundle again: hpctl lifecycle bundle --wheels --python-version 3.10"
        yield fail(place, f"{facts.scripts.directory}/{why}", mend)


def _all(wanted: Wanted, facts: Facts, rule: object, content: str) -> Iterator[Finding]:
    assert callable(rule)
    here = facts.scripts
    if not here.files:
        return
    place = next(iter(entries(wanted).values()), ())
    own = entries(wanted)

    def found() -> Iterator[Finding]:
        for name, script in here.files.items():
            if rule is script_rules.of_modes and name in own:
                continue
            yield from rule(script, here.directory, own.get(name, place))
        if here.truncated:
            yield warn(
                place, f"{here.directory} has very many files: some were not looked at", "tidy it"
            )

    yield from settled(found(), f"{len(here.files)} {content}", place) if content else found()


FAMILY = Family(
    "scripts",
    "Lifecycle scripts on this machine (`--scripts`).",
    ("scripts",),
    (
        Check(
            "entry-point",
            "The entry points are there, executable, and begin with a `#!` line.",
            entry_point,
        ),
        Check("readable", "Scripts have LF line ends, no byte order mark, and parse.", readable),
        Check("modes", "What has a `#!` line is executable.", modes),
        Check(
            "parameters",
            "`provisioning_parameters.json` names groups that there are, and stands beside no "
            "roles of the API.",
            parameters,
        ),
        Check(
            "roles",
            "Where the API sets Slurm up, a bundle's `config.json` says who the login nodes are.",
            roles,
        ),
        Check(
            "wheels",
            "hpctl can be installed from a bundle's wheels with the Python that it is for.",
            wheels,
        ),
    ),
)
