"""Fixtures that several folders share: sandboxes, each a real Slurm on loopback."""

import signal
from collections.abc import Callable

import pytest
from hypothesis import settings

from hpctl.sandbox.api import Sandbox
from tests.checkpoints.proof.table import pytest_terminal_summary as pytest_terminal_summary
from tests.durations import Recorder, longest_first
from tests.examples import examples
from tests.intakes import Head
from tests.live_clusters import live as live
from tests.live_clusters import pytest_runtest_makereport as pytest_runtest_makereport
from tests.munged import Realm, realm
from tests.process import room

SandboxFactory = Callable[..., Sandbox]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.txt")


def pytest_configure(config: pytest.Config) -> None:
    """A shell has its background jobs ignore SIGINT, and all that they start would inherit that."""
    settings.register_profile("slice", max_examples=examples(50), deadline=None)
    settings.load_profile("slice")
    # With xdist the reports of all processes come to the one that has no workerinput.
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    longest_first(items)


@pytest.fixture(scope="module")
def munges():
    """Four munged, of a head node, two nodes and a stranger, for a file's tests."""
    with realm() as running:
        yield running


@pytest.fixture
def head(munges: Realm):
    """A running intake of one test's own."""
    running = Head(munges)
    running.server.start()
    yield running
    running.server.stop()


@pytest.fixture(scope="module")
def slurm():
    """A Slurm of four nodes with eight GPUs each, shared by a file's tests: leave it idle.

    No agents, no daemon, no emulated HyperPod. No two files share one: how a test ends must not
    hang on which files its process was given before.
    """
    with room() as base:
        settings = {"nodes": 4, "agents": False, "emulator": False}
        settings["slurm_conf"] = "SchedulerParameters=batch_sched_delay=0\n"  # as doctor advises
        with Sandbox("slurm", state_dir=base / "s", **settings) as sandbox:
            yield sandbox


@pytest.fixture
def shared():
    """Where the ranks of any user and the test both can write."""
    with room() as base:
        yield base


@pytest.fixture
def sandbox_factory():
    """Makes sandboxes of a test's own, up unless `up=False`, and ends them after it.

    Keywords are the fields of hpctl.sandbox.spec.SandboxSpec.
    """
    made: list[Sandbox] = []
    with room() as base:

        def make(*, up: bool = True, **settings) -> Sandbox:
            name = settings.pop("name", f"t{len(made)}")
            sandbox = Sandbox(name, state_dir=base / name, **settings)
            made.append(sandbox)
            return sandbox.up() if up else sandbox

        yield make
        for sandbox in made:
            sandbox.down()
