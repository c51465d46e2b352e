"""Debian packages that a step needs: the bundle's own, else from the machine's own sources."""

from __future__ import annotations

from lifecycle.failure import Failure
from lifecycle.node import Node

OPTIONS = ("--yes", "--option", "DPkg::Lock::Timeout=120", "--no-install-recommends")
FETCH_S = 500.0


def install(node: Node, step: str, names: list[str]) -> None:
    """Install `debs/STEP/*.deb` of the bundle, or `names` where it brings none.

    Raises Failure, with what to do where neither can be had.
    """
    machine, brought = node.machine, sorted((node.bundle / "debs" / step).glob("*.deb"))
    # What an earlier run was killed in.
    machine.run("dpkg", "--configure", "--pending", timeout=FETCH_S)
    wanted = [str(path) for path in brought] or names
    try:
        if not brought:
            machine.run("apt-get", "update", *OPTIONS, timeout=FETCH_S)
        machine.run("apt-get", "install", *wanted, *OPTIONS, timeout=FETCH_S)
    except Failure as failure:
        hint = f"let the bundle bring {', '.join(names)} with all dependencies as debs/{step}/*.deb"
        raise Failure(f"{failure}; {hint}") from failure


def whole(node: Node, names: list[str]) -> bool:
    """Return whether none of these packages was left half installed; one that is not there is
    none."""
    form = "--showformat=${Status}\n"
    plain = [name.partition("=")[0] for name in names]
    output = node.machine.run("dpkg-query", "--show", form, *plain, ok=(0, 1)).splitlines()
    return all(line.endswith(" installed") for line in output if line.startswith("install "))
