"""Shell completion of what the journal and the agents name: nodes, jobs, recoveries, holds."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import TYPE_CHECKING

import click

from hpctl.engine.config_loading import load_config
from hpctl.toolkit.errors import HpctlError
from hpctl.toolkit.output import DEFAULT_CONFIG

if TYPE_CHECKING:
    from hpctl.engine.config import Config
    from hpctl.engine.journal.state import EngineState
    from hpctl.vocabulary.identity import NodeName


_JOB = re.compile(r"\d+(_\d+)?")

Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def _make_shell_completer(
    pick: Callable[[EngineState], Iterable[object]], *, agents: bool = False
) -> Complete:
    """Completes what `pick` finds in the journal, and with `agents` the nodes that report."""

    def complete_target_name(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        path = ctx.params.get("config") or os.environ.get("HPCTL_CONFIG") or DEFAULT_CONFIG
        try:
            state, heard = _read_journaled_engine_state(load_config(path), agents=agents)
        except (HpctlError, OSError):
            return []
        names = {*map(str, pick(state)), *map(str, heard)}
        return sorted(n for n in names if n.startswith(incomplete))

    return complete_target_name


def _read_journaled_engine_state(
    config: Config, *, agents: bool
) -> tuple[EngineState, Iterable[NodeName]]:
    """Return what the journal amounts to, and with `agents` the nodes that report: as the daemon
    knows them, else from the journal itself. Slurm and the cloud are not asked. Raises
    HpctlError."""
    from hpctl.engine.world_client import WorldClient, WorldUnavailableError

    client = WorldClient(config)
    try:
        state = client.read_journal_state(history=True)
        return state, client.list_reporting_nodes() if agents else ()
    except WorldUnavailableError:
        pass
    from hpctl.engine.adapters import open_journal_reader
    from hpctl.engine.world_offline import replay_journal_events

    with closing(open_journal_reader(config)) as store:
        return replay_journal_events(store.events()), list(store.health()) if agents else ()


def list_job_ids_in_journal(state: EngineState) -> list[object]:
    """Return the jobs that the journal names: treated, held, or with a report of their own."""
    treated = [recovery.shown for recovery in state.jobs.values()]
    held = [target for target in state.holds if _JOB.fullmatch(target)]
    return [*treated, *held, *state.reports]


def list_explainable_targets(state: EngineState) -> list[object]:
    """Whatever `explain` can explain."""
    jobs = [r.shown for r in state.jobs.values()]
    nodes = [r.node for r in state.nodes.values() if not r.is_for_capacity_change]
    return [*state.nodes, *state.jobs, *state.changes, *state.holds, *nodes, *jobs]


complete_node = _make_shell_completer(
    lambda state: (r.node for r in state.nodes.values() if not r.is_for_capacity_change),
    agents=True,
)


complete_open = _make_shell_completer(
    lambda state: [*state.open_nodes.values(), *state.open_jobs.values()]
)


complete_hold = _make_shell_completer(
    lambda state: (t for t, hold in state.holds.items() if hold.approvable)
)


complete_job = _make_shell_completer(list_job_ids_in_journal)


complete_window = _make_shell_completer(lambda state: (one.opened.group for one in state.windows))


complete_any = _make_shell_completer(list_explainable_targets)
