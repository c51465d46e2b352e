"""`make package`: hpctl's wheel, and a Debian package that needs no network to install.

The package holds the wheels of hpctl and of all that it needs, for every Python that it runs on;
its postinst makes /opt/hpctl from them for the Python of the machine. Built by dpkg-deb alone.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.specifiers import SpecifierSet

from hpctl.clusters import bundle
from hpctl.clusters.bundle_wheels import (
    WheelTargetPlatform,
    download_wheels_with_dependencies,
    find_unmet_wheel_requirements,
)
from hpctl.toolkit.compat import SAFE_PATH

HERE = Path(__file__).resolve().parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
"""Those of Ubuntu 22.04, Debian 12, Ubuntu 24.04 and Debian 13."""

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

SCRIPTS = ("postinst", "prerm", "postrm")

COMPLETIONS = {
    "bash": "bash-completion/completions/hpctl",
    "zsh": "zsh/vendor-completions/_hpctl",
    "fish": "fish/vendor_completions.d/hpctl.fish",
}
"""Where Debian's shells read a command's completion script, below /usr/share."""

CONTROL = """\
Package: hpctl
Version: {version}
Architecture: {architecture}
Maintainer: hpctl developers <hpctl@localhost>
Installed-Size: {size}
Depends: libc6 (>= 2.28), python3 (>= {lowest}), init-system-helpers
Recommends: munge
Section: admin
Priority: optional
Description: self-healing Slurm GPU clusters on Amazon SageMaker HyperPod
 Daemon, node agent and command line. Needs no network to install, and starts nothing by itself:
 `hpctl install head`, `node` or `login` sets a machine up.
"""


def main() -> int:
    """Build what the words ask for; print what was made."""
    parser = argparse.ArgumentParser(prog="debian/build.py", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("dist"))
    parser.add_argument("--machine", choices=list(ARCHITECTURES), default="x86_64")
    parser.add_argument("--python", action="append", choices=PYTHONS, help="default: all")
    parser.add_argument("--wheelhouse", type=Path, help="a directory of all wheels: fetch nothing")
    parser.add_argument(
        "--constraints", type=Path, help="a directory with a file 3.11.txt for each"
    )
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as room:
        tree = Path(room) / "tree"
        wheels = tree / "usr/lib/hpctl/wheels"
        wheels.mkdir(parents=True)
        if options.wheelhouse:
            for wheel in options.wheelhouse.glob("*.whl"):
                shutil.copy(wheel, wheels)
        pythons = fetch(
            wheels,
            options.python or PYTHONS,
            options.machine,
            options.wheelhouse,
            options.constraints,
        )
        own = next(wheels.glob("hpctl-*.whl"))
        shutil.copy(own, options.output)
        print(options.output / own.name)
        print(pack(tree, own, pythons, ARCHITECTURES[options.machine], options.output))
    return 0


def fetch(
    wheels: Path, pythons: Sequence[str], machine: str, given: Path | None, limits: Path | None
) -> list[str]:
    """Fill a directory with the wheels for these Pythons; those of them that hpctl runs on."""
    allowed = SpecifierSet(importlib.metadata.metadata("hpctl")["Requires-Python"])
    fitting = [python for python in pythons if python in allowed]
    for python in fitting:
        if given is None:
            constraints = limits / f"{python}.txt" if limits else None
            with tempfile.TemporaryDirectory() as room:
                download_wheels_with_dependencies(
                    Path(room), WheelTargetPlatform(python, machine), constraints=constraints
                )
                for wheel in Path(room).glob("*.whl"):
                    shutil.copy(wheel, wheels)
        if lacks := find_unmet_wheel_requirements(wheels, WheelTargetPlatform(python, machine)):
            raise SystemExit(
                f"Python {python}: no wheel of {'; '.join(lack.why for lack in lacks)}"
            )
    return fitting


def pack(tree: Path, own: Path, pythons: Sequence[str], architecture: str, output: Path) -> Path:
    """Lay the package's other files and build it; its path."""
    version = own.name.split("-")[1]
    lib = tree / "usr/lib/hpctl"
    names = [
        path.name + hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((lib / "wheels").iterdir())
    ]
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    (lib / "id").write_text(f"{version}-{digest[:8]}\n")
    (lib / "pythons").write_text("".join(f"{python}\n" for python in pythons))
    units = tree / "usr/lib/systemd/system"
    shutil.copytree(bundle.find_lifecycle_script_directory() / "systemd", units)
    (tree / "usr/bin").mkdir()
    (tree / "usr/bin/hpctl").symlink_to("/opt/hpctl/bin/hpctl")
    add_manual(tree / "usr/share/man/man1")
    add_completions(tree / "usr/share")
    add_documents(tree / "usr/share/doc/hpctl")
    debian = tree / "DEBIAN"
    debian.mkdir()
    for script in (*SCRIPTS, "triggers"):
        shutil.copy(HERE / script, debian / script)
    size = sum(path.lstat().st_size for path in tree.rglob("*")) // 1024
    control = CONTROL.format(
        version=version, architecture=architecture, size=size, lowest=pythons[0]
    )
    (debian / "control").write_text(control)
    for path in tree.rglob("*"):
        if not path.is_symlink():
            runs = path.is_dir() or path.name in SCRIPTS
            path.chmod(0o755 if runs else 0o644)
    made = output / f"hpctl_{version}_{architecture}.deb"
    # Wheels are compressed already.
    words = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", str(tree), str(made)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return made


def add_manual(to: Path) -> None:
    """Put the manual pages into a directory as Debian has them, compressed without a time."""
    to.mkdir(parents=True)
    for page in sorted((HERE.parent / "docs/man").glob("*.1")):
        (to / f"{page.name}.gz").write_bytes(gzip.compress(page.read_bytes(), mtime=0))


def add_completions(share: Path) -> None:
    """Put the completion scripts where the shells look, below a /usr/share."""
    for shell, place in COMPLETIONS.items():
        words = [sys.executable, *SAFE_PATH, "hpctl", "completion", shell]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE)
        (share / place).parent.mkdir(parents=True)
        (share / place).write_bytes(done.stdout)


def add_documents(to: Path) -> None:
    """Put license, notice and changelog into a directory, named as Debian names them."""
    to.mkdir(parents=True)
    top = HERE.parent
    shutil.copy(top / "LICENSE", to / "copyright")
    shutil.copy(top / "NOTICE", to)
    (to / "changelog.gz").write_bytes(gzip.compress((top / "CHANGELOG.md").read_bytes(), mtime=0))


if __name__ == "__main__":
    raise SystemExit(main())
