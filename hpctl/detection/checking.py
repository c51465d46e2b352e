"""The agent's timed checks put together: the table, the site's file, the machine, NVML's child."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from hpctl.detection.budget import (
    CheckLoadShedder,
    measure_process_resource_usage,
    read_process_resident_mb,
)
from hpctl.detection.changes import FindingChangeListener
from hpctl.detection.config import select_enabled_checks
from hpctl.detection.machine import (
    build_checked_machine,
    read_machine_uptime_s,
    record_agent_version_change,
)
from hpctl.detection.metrics import list_agent_metric_samples, render_prometheus_text
from hpctl.detection.nvml.client import NvmlClient
from hpctl.detection.nvml.snapshot import NvmlSnapshot
from hpctl.detection.runner import AGENT_CHECKS, CheckRunner, load_check
from hpctl.detection.settings import AgentSettings
from hpctl.faults.table import CHECKS
from hpctl.vocabulary.model import Finding

#
# The agent's timed checks put together: the table, the site's file, the machine, NVML's child.

NAMES = frozenset(spec.name for spec in (*CHECKS, AGENT_CHECKS))
"""The checks whose findings are kept here; all others are the kernel's."""


FIRST_SWEEP_S = 5.0
"""The NVML child needs a moment for its first sweep. Reporting the GPUs as unknown until then would
make each start of the agent news."""


class CheckSupervisor:
    """The checks of one agent. `listener` is called with news, from one of their threads."""

    def __init__(
        self, settings: AgentSettings, earlier: Iterable[Finding], listener: FindingChangeListener
    ) -> None:
        self._nvml = NvmlClient(root=settings.root)
        self._patience_s = FIRST_SWEEP_S
        bare = build_checked_machine(settings.root, settings.config.expected)
        chosen = select_enabled_checks(settings.config, CHECKS)
        allowed = settings.config.budget
        levels = {spec.shed for spec, _ in chosen}
        self._budget = CheckLoadShedder(levels, allowed.cpu_percent, allowed.memory_mb)
        self._runner = CheckRunner(
            [load_check(spec, limits) for spec, limits in chosen],
            replace(bare, nvml=self._wait_for_first_nvml_snapshot),
            listener,
            self._budget,
            boot_age_s=read_machine_uptime_s(bare),
            upgraded=record_agent_version_change(settings.spool),
            earlier=(finding for finding in earlier if finding.check in NAMES),
        )

    def _wait_for_first_nvml_snapshot(self) -> NvmlSnapshot:
        """Return the newest sweep; only the first call waits for one. On the runner's thread."""
        wait_s, self._patience_s = self._patience_s, 0.0
        return self._nvml.wait(wait_s)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep off the GPUs while they are reset; drop what was seen of them."""
        with self._nvml.held():
            yield
        self._runner.forget("gpu.")

    def start(self) -> None:
        """Start the checks."""
        self._runner.start()

    def stop(self) -> None:
        """End within seconds, whatever hangs."""
        self._runner.stop()
        self._nvml.close()

    def fileno(self) -> int:
        """Return a descriptor that is readable when NVML's child has sent something: call `listen`
        then, and periodically."""
        return self._nvml.fileno()

    def listen(self) -> None:
        """Read what NVML's child has sent, and supervise it."""
        self._nvml.events()

    def findings(self) -> list[Finding]:
        """Return all that the checks have to report now. From any thread."""
        return self._runner.findings()

    def gauges(self) -> dict[str, float]:
        """Return numbers for the head node's comparison of peers. From any thread."""
        return self._runner.gauges()

    def metrics(self, findings: Iterable[Finding]) -> bytes:
        """Return all that is exported to Prometheus. From any thread."""
        return render_prometheus_text(
            (
                *list_agent_metric_samples(self._runner.samples(), findings, self._runner.gauges()),
                ("cpu_ratio", {}, self._budget.cpu_percent / 100),
                ("resident_memory_bytes", {}, measure_process_resource_usage().memory_mb * 1e6),
                ("nvml_child_resident_memory_bytes", {}, self._read_nvml_child_memory()),
            )
        )

    def _read_nvml_child_memory(self) -> float | None:
        """Return the resident memory of NVML's child, NVIDIA's library included; None without a
        child."""
        pid = self._nvml.child_pid()
        try:
            return None if pid is None else read_process_resident_mb(pid) * 1e6
        except OSError:  # it has just ended
            return None
