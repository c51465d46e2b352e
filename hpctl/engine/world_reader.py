"""Read the world: from the daemon, or without one.

A running daemon offers the world of its last cycle, and readers take it from there
(`world_server`, `world_client`). Where no daemon answers, a reader computes it from the
journal and Slurm (`world_offline`); `World.computed` says so.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from hpctl.engine.state_disk import describe_full_state_filesystem
from hpctl.engine.world import World
from hpctl.engine.world_client import WorldClient, WorldUnavailableError
from hpctl.engine.world_wire import LATELY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpctl.engine.config import Config
    from hpctl.engine.world_offline import JournalReplayer
    from hpctl.vocabulary.slurm_facts import SchedulerView, SlurmReservation


class WorldReader:
    """Reads the world, for one thread. Who looks again and again keeps one."""

    def __init__(self, config: Config, *, recent: bool = False) -> None:
        """`recent`: leave out job recoveries that ended, and reports of supervisors, over a day
        ago."""
        self._config, self._recent = config, recent
        self._client = WorldClient(config)
        self._journal: JournalReplayer | None = None

    def read(
        self,
        at: datetime,
        *,
        slurm: bool = False,
        cloud: bool = False,
        past: bool = False,
        placement: bool = False,
    ) -> World:
        """Take the daemon's world of its last cycle, or make one where no daemon answers.

        `slurm` and `cloud` say whether these are needed; a daemon tells Slurm in any case. With
        `past`, what was retired too, which only the journal has. With `placement`, Slurm's
        reservations and topology as well, where a daemon reads them. Raises what opening the store
        raises: without daemon and journal there is nothing to show. An unreadable Slurm or cloud
        is part of the answer.
        """
        world = self._read(at, slurm=slurm, cloud=cloud, past=past, placement=placement)
        full_disk = describe_full_state_filesystem(self._config.state_dir)
        return replace(world, full_disk=full_disk) if full_disk else world

    def _read(
        self, at: datetime, *, slurm: bool, cloud: bool, past: bool, placement: bool
    ) -> World:
        why = "what is past is in the journal alone"
        if not past:
            try:
                return self._client.read(
                    at, cloud=cloud, history=not self._recent, placement=placement
                )
            except WorldUnavailableError as reason:
                why = str(reason)
        from hpctl.engine.world_offline import JournalReplayer, read_world_offline

        if past:
            journal = JournalReplayer(None, past=True)
        else:
            journal = self._journal or JournalReplayer(at - LATELY if self._recent else None)
            self._journal = journal
        world = read_world_offline(self._config, at, journal, slurm=slurm, cloud=cloud)
        return replace(world, computed=why)


def read_world_once(
    config: Config, at: datetime, *, slurm: bool = False, cloud: bool = False, past: bool = False
) -> World:
    """Read the world once; see `WorldReader.read`."""
    return WorldReader(config).read(at, slurm=slurm, cloud=cloud, past=past)


def read_current_scheduler_view(config: Config) -> SchedulerView:
    """Take the daemon's last reading of Slurm; ask Slurm where no daemon answers, or where the
    daemon cannot read it. Raises Unavailable."""
    with suppress(WorldUnavailableError):
        found = WorldClient(config).read_scheduler_view()
        if found is not None:
            return found
    from hpctl.engine.adapters import make_slurm_command_client

    return make_slurm_command_client(config).view()


def read_slurm_reservations(config: Config) -> Mapping[str, SlurmReservation]:
    """Read Slurm's reservations now. Raises Unavailable."""
    from hpctl.engine.adapters import make_slurm_command_client

    return make_slurm_command_client(config).reservations()


def read_live_world(config: Config, at: datetime) -> World:
    """Read journal, Slurm and the cloud now, whatever the daemon knows: before an order that
    destroys. Raises as `WorldReader.read`."""
    from hpctl.engine.world_offline import JournalReplayer, read_world_offline

    world = read_world_offline(config, at, JournalReplayer(None), slurm=True, cloud=True)
    return replace(world, computed="what an order would destroy is read live")
