"""The agent's timed checks put together: the table, the site's file, the machine, NVML's child."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from hpctl.agent.budget import Budget
from hpctl.agent.config import apply
from hpctl.agent.nvml.client import Client
from hpctl.agent.nvml.snapshot import Snapshot
from hpctl.agent.runner import AGENT_CHECKS, Runner, load
from hpctl.agent.settings import AgentSettings
from hpctl.agent.start import boot_age_s, machine, upgraded
from hpctl.core.faults.table import CHECKS
from hpctl.core.model import Finding

NAMES = frozenset(spec.name for spec in (*CHECKS, AGENT_CHECKS))
"""The checks whose findings are kept here; all others are the kernel's."""
FIRST_SWEEP_S = 5.0
"""The NVML child needs a moment for its first sweep. To call the GPUs unknown until then would
make each start of the agent news."""


class Checks:
    """The checks of one agent. `changed` is called, from a thread of theirs, when there is news."""

    def __init__(
        self, settings: AgentSettings, earlier: Iterable[Finding], changed: Callable[[], None]
    ) -> None:
        self._nvml = Client(root=settings.root)
        self._patience_s = FIRST_SWEEP_S
        bare = machine(settings.root, settings.config.machine())
        chosen = apply(settings.config, CHECKS)
        allowed = settings.config.budget
        self._runner = Runner(
            [load(spec, limits) for spec, limits in chosen],
            replace(bare, nvml=self._sweep),
            changed,
            Budget({spec.shed for spec, _ in chosen}, allowed.cpu_percent, allowed.memory_mb),
            boot_age_s=boot_age_s(bare),
            upgraded=upgraded(settings.spool),
            earlier=(finding for finding in earlier if finding.check in NAMES),
        )

    def _sweep(self) -> Snapshot:
        """The newest sweep; only the first look of all waits for one. On the runner's thread."""
        wait_s, self._patience_s = self._patience_s, 0.0
        return self._nvml.wait(wait_s)

    def start(self) -> None:
        """Begin to check."""
        self._runner.start()

    def stop(self) -> None:
        """End within seconds, whatever hangs."""
        self._runner.stop()
        self._nvml.close()

    def fileno(self) -> int:
        """Readable when NVML's child has said something: call `listen` then, and now and then."""
        return self._nvml.fileno()

    def listen(self) -> None:
        """Take in what NVML's child has said, and look after it."""
        self._nvml.events()

    def findings(self) -> list[Finding]:
        """All that the checks have to report now. From any thread."""
        return self._runner.findings()

    def gauges(self) -> dict[str, float]:
        """Numbers for the head node's comparison of peers. From any thread."""
        return self._runner.gauges()
