"""Fixtures that several folders share: sandboxes, each a real Slurm on loopback."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hpctl.sandbox.api import Sandbox
from tests.checkpoints.table import pytest_terminal_summary as pytest_terminal_summary
from tests.intakes import Head
from tests.munged import Realm, realm

SandboxFactory = Callable[..., Sandbox]

FIRST = (
    "test_soak_slice", "test_chroot", "test_booted", "test_checks_live", "test_chaos_nodes",
    # Whoever has the soak, which is one long test, is given this to wait behind it.
    "test_progress_slurm", "test_users", "test_peers",
    "test_chaos_api", "test_heal", "test_examples", "test_chaos_daemon",
    "test_chaos_jobs", "test_job_troubles_live", "test_run_inside", "test_chaos_second_actor",
    "test_life", "test_sandbox", "test_requests_live", "test_throttled",
    "test_controller", "test_runs", "test_jobs", "test_run_live",
    "test_chaos_partition", "test_intake_agent", "test_nodes", "test_sbatch_live", "test_spank",
    "test_interrupted", "test_lifecycle_fails", "test_training_slurm", "test_epilog_slurmctld",
    "test_replaced_by_hand", "test_no_capacity", "test_sandbox_life",
)  # fmt: skip
"""Files of tests with a real Slurm by what they take, the longest first: several processes that
take whole files end together then. A file that is not named here comes after these."""


def pytest_configure() -> None:
    """A shell has its background jobs ignore SIGINT, and all that they start would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with a real Slurm in the order of `FIRST`, each file's own order kept."""
    place = {name: number for number, name in enumerate(FIRST)}

    def rank(item: pytest.Item) -> int:
        return place.get(item.path.stem, len(place)) if item.get_closest_marker("slurm") else 0

    items.sort(key=rank)


@pytest.fixture(scope="module")
def munges() -> Iterator[Realm]:
    """Four munged, of a head node, two nodes and a stranger, for a file's tests."""
    with realm() as running:
        yield running


@pytest.fixture
def head(munges: Realm) -> Iterator[Head]:
    """A running intake of one test's own."""
    running = Head(munges)
    running.server.start()
    yield running
    running.server.stop()


@pytest.fixture(scope="module")
def slurm() -> Iterator[Sandbox]:
    """A Slurm of four nodes with eight GPUs each, shared by a file's tests: leave it idle.

    No agents, no daemon, no emulated HyperPod. No two files share one: how a test ends must not
    hang on which files its process was given before.
    """
    with _short_directory() as base:
        settings = {"nodes": 4, "agents": False, "emulator": False}
        with Sandbox("slurm", state_dir=base / "s", **settings) as sandbox:
            yield sandbox


@pytest.fixture(scope="module")
def empty_sandbox() -> Iterator[Sandbox]:
    """A sandbox of at most four nodes whose cluster nobody has created yet, for a file's tests.

    Its agents and daemon are left out; what is in its AWS tells `Sandbox.aws`. See
    tests/integration/provision.py.
    """
    with _short_directory() as base:
        settings = {"nodes": 4, "agents": False, "empty": True, "retry_time": 0.5}
        with Sandbox("empty", state_dir=base / "e", **settings) as sandbox:
            yield sandbox


@pytest.fixture
def sandbox_factory() -> Iterator[SandboxFactory]:
    """Makes sandboxes of a test's own, up unless `up=False`, and ends them after it.

    Keywords are the fields of hpctl.sandbox.spec.Spec.
    """
    made: list[Sandbox] = []
    with _short_directory() as base:

        def make(*, up: bool = True, **settings: Any) -> Sandbox:
            name = settings.pop("name", f"t{len(made)}")
            sandbox = Sandbox(name, state_dir=base / name, **settings)
            made.append(sandbox)
            return sandbox.up() if up else sandbox

        yield make
        for sandbox in made:
            sandbox.down()


class _short_directory:
    """A directory whose path leaves room for unix sockets, which pytest's own does not."""

    def __enter__(self) -> Path:
        self._path = Path(tempfile.mkdtemp(prefix="hpctl-"))
        self._path.chmod(0o755)
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)
