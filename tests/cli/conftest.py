"""A head node on paper: a real journal file and configuration; Slurm and the cloud are values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest
from click.testing import CliRunner, Result

from hpctl.cli import output
from hpctl.cli.main import cli
from hpctl.core.capacity import RESERVATION
from hpctl.core.journal import Event
from hpctl.core.model import NodeName, ProviderView, SchedulerView
from hpctl.errors import Unavailable
from hpctl.store.sql import Store
from tests.cli import worlds
from tests.cli.paper_aws import PaperAws
from tests.clusters.paper_slurm import PaperSlurm


@dataclass
class Reads:
    """A scheduler or provider that answers one view, or cannot."""

    answer: SchedulerView | ProviderView | None

    def view(self) -> SchedulerView | ProviderView:
        if self.answer is None:
            raise Unavailable("it does not answer", "look at its log")
        return self.answer

    def reservations(self) -> dict[str, tuple[NodeName, ...]]:
        self.view()
        return {f"{RESERVATION}worker-group-1": (NodeName("ip-10-1-0-2"),)}


@dataclass
class Head:
    """What a test may change before it runs a command."""

    dir: Path
    config: Path
    slurm: SchedulerView | None = field(default_factory=worlds.slurm)
    cloud: ProviderView | None = field(default_factory=worlds.cloud)
    aws: PaperAws = field(default_factory=PaperAws)

    def store(self) -> Store:
        return Store(f"sqlite:///{self.dir / 'journal.db'}", write=True)

    def write(self, *events: Sequence[Event]) -> None:
        """Append to the journal, and put the agents' facts and the daemon's lease there."""
        store = self.store()
        store.append([e for some in events for e in some])
        store.record(list(worlds.health().values()))
        store.take_lease("head-1", 4711, "0.1.0", "own", worlds.at(-600), 30.0)
        store.renew_lease(worlds.at(89.5), 30.0, 0.012, "", "own")
        store.close()

    def by_hand(self) -> PaperSlurm:
        """Slurm as an order of `hpctl cluster` drains it."""
        assert self.slurm is not None
        paper = PaperSlurm([])
        paper.nodes, paper.jobs = dict(self.slurm.nodes), dict(self.slurm.jobs)
        return paper

    def run(self, *args: str, width: int = 80, stdin: str | IO[bytes] = "") -> Result:
        """Run hpctl as from the shell, on a terminal so wide."""
        env = {"HPCTL_CONFIG": str(self.config), "COLUMNS": str(width)}
        return CliRunner(env=env).invoke(cli, list(args), input=stdin, prog_name="hpctl")


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    config = tmp_path / "hpctl.yaml"
    config.write_text(
        f"mode: own\nstate_dir: {tmp_path}\nkill_switch: {tmp_path}/STOP\n"
        "intake: {listen: '127.0.0.1:1'}\n"
        "cluster: {provider: sagemaker, name: llm-prod, region: us-west-2}\n"
    )
    made = Head(tmp_path, config)
    monkeypatch.setattr("hpctl.wiring.make_scheduler", lambda _: Reads(made.slurm))
    monkeypatch.setattr("hpctl.wiring.choose_scheduler", lambda _: (Reads(made.slurm), "cli"))
    monkeypatch.setattr("hpctl.wiring.make_provider", lambda _: Reads(made.cloud))
    monkeypatch.setattr("hpctl.wiring.open_aws", lambda *_: made.aws)
    monkeypatch.setattr("hpctl.wiring.make_by_hand", lambda _: made.by_hand())
    monkeypatch.setattr("hpctl.cli.cluster.maintenance.EVERY_S", 0.0)
    monkeypatch.setattr(output, "now", lambda: worlds.NOW)
    monkeypatch.delenv("SUDO_USER", raising=False)
    return made


@pytest.fixture
def history(head: Head) -> Head:
    """The head node with everything of `worlds` in its journal."""
    head.write(worlds.healed(), worlds.troubled(), worlds.changes())
    return head
