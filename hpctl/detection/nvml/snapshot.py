"""The result of one sweep of the NVML child over every GPU: plain values that msgspec can encode.

The NVML child fills them in; the checks read them. None always means that the device or driver does
not report the value (NVML answered NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND or the like),
and a check concludes nothing from it. Names and units are NVML's; numbers in brackets are field ids
of `nvmlDeviceGetFieldValues`. Times are `time.monotonic()` seconds, which all processes of a
machine share.
"""

from msgspec import Struct


class NvmlError(Struct, frozen=True):
    """An NVML call that failed: the nvmlReturn_t (15 is GPU_IS_LOST) and the function's name."""

    code: int
    call: str
    text: str = ""


class ClockThrottleTimes(Struct, frozen=True):
    """Nanoseconds for which the clocks were held down, cumulative since the driver was loaded."""

    sw_thermal_ns: int | None = None
    """[269]"""
    hw_thermal_ns: int | None = None
    """[270]"""
    power_brake_ns: int | None = None
    """[271]"""


class GpuRowRemapping(Struct, frozen=True):
    """Row remapping, Ampere and later: fields [142-145] and the banks with few or no rows left."""

    correctable: int | None = None
    uncorrectable: int | None = None
    pending: bool | None = None
    failed: bool | None = None
    banks_low: int | None = None
    banks_none: int | None = None


class GpuEccCounters(Struct, frozen=True):
    """Memory errors. Volatile counters start at 0 when the driver is loaded or the GPU reset.

    The totals are nvmlDeviceGetTotalEccErrors with VOLATILE_ECC; `sram_threshold_exceeded` is
    nvmlDeviceGetSramEccErrorStatus' bThresholdExceeded. The pages are those of GPUs before
    Ampere: fields [29-31].
    """

    volatile_uncorrected: int | None = None
    volatile_corrected: int | None = None
    sram_threshold_exceeded: bool | None = None
    retired_sbe: int | None = None
    retired_dbe: int | None = None
    retired_pending: bool | None = None


class PcieLinkState(Struct, frozen=True):
    """The GPU's own PCIe link, as nvmlDeviceGet(Curr|Max)PcieLink(Generation|Width) say."""

    generation: int | None = None
    generation_max: int | None = None
    width: int | None = None
    width_max: int | None = None
    replays: int | None = None
    """[94], cumulative."""


class NvlinkState(Struct, frozen=True):
    """One NVLink that the device has; a link that it does not have is left out.

    `active` is nvmlDeviceGetNvLinkState. Counters are cumulative, their scope id is the link.
    A bit error rate is decoded: the field's mantissa (bits 8-11) times ten to the power of minus
    its exponent (bits 0-7).
    """

    link: int
    active: bool | None = None
    replays: int | None = None
    """[161]"""
    recoveries: int | None = None
    """[162], on NVLink5 [215]."""
    recoveries_failed: int | None = None
    """[214]"""
    effective_ber: float | None = None
    """[220]"""
    symbol_ber: float | None = None
    """[222]"""


class NvlinkFabric(Struct, frozen=True):
    """nvmlDeviceGetGpuFabricInfoV. None in `Gpu.fabric` where the call is not supported.

    `state`: 0 not supported, 1 not started, 2 in progress, 3 completed. `status` is the
    nvmlReturn_t of the registration and means something once it has completed.
    """

    state: int
    status: int
    clique: int = 0
    cluster_uuid: str = ""
    """32 hexadecimal digits, or empty where the GPU belongs to no cluster (all of them zero)."""
    health_mask: int | None = None


class GpuProcess(Struct, frozen=True):
    """A compute process (nvmlDeviceGetComputeRunningProcesses); `used_bytes` of GPU memory."""

    pid: int
    used_bytes: int | None = None


class GpuState(Struct, frozen=True):
    """One GPU. With `error` set (the first call that failed for good) the rest may be missing.

    `pci` is spelt as in sysfs, `0000:c1:00.0`; it and `uuid` are empty where the driver does not
    even report those.
    """

    index: int
    uuid: str = ""
    pci: str = ""
    name: str = ""
    vbios: str = ""
    inforom_corrupt: bool | None = None
    """nvmlDeviceValidateInforom, when the child began."""
    error: NvmlError | None = None
    recovery_action: int | None = None
    """[230]: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 recover IMEX
    domain, 6 bus reset, 7 system reboot."""
    utilization: int | None = None
    """nvmlDeviceGetUtilizationRates().gpu, percent."""
    sm_clock_mhz: int | None = None
    sm_clock_application_mhz: int | None = None
    """The highest clock of jobs; a user may have lowered it from sm_clock_default_mhz."""
    sm_clock_default_mhz: int | None = None
    persistence: bool | None = None
    """nvmlDeviceGetPersistenceMode."""
    power_mw: int | None = None
    temperature_c: int | None = None
    temperature_slowdown_c: int | None = None
    """NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, an absolute temperature."""
    temperature_margin_c: int | None = None
    """nvmlDeviceGetMarginTemperature: the degrees left until the GPU slows itself down."""
    memory_temperature_c: int | None = None
    """[82]"""
    memory_temperature_max_c: int | None = None
    """NVML_TEMPERATURE_THRESHOLD_MEM_MAX, an absolute temperature."""
    throttle: ClockThrottleTimes = ClockThrottleTimes()
    remap: GpuRowRemapping = GpuRowRemapping()
    ecc: GpuEccCounters = GpuEccCounters()
    pcie: PcieLinkState = PcieLinkState()
    mig: bool | None = None
    """nvmlDeviceGetMigMode of now: in MIG mode the driver removes a GPU from NVLink and fabric."""
    nvlinks: tuple[NvlinkState, ...] = ()
    fabric: NvlinkFabric | None = None
    processes: tuple[GpuProcess, ...] | None = None

    @property
    def device(self) -> str:
        """Return its name in findings: the PCI address, else whatever the driver still reported."""
        return self.pci or self.uuid or f"gpu{self.index}"


class NvmlEvent(Struct, frozen=True):
    """An NVML event (nvmlEventData_t): `kind` is one nvmlEventType bit, `data` its number.

    For kind 0x8 (XidCriticalError) the data is the Xid; for 0x8000 (GpuRecoveryAction) and 0x4000
    (GpuUnavailableError) the event's own value. `at` is when the child read it.
    """

    at: float
    pci: str
    kind: int
    data: int = 0


class NvmlSnapshot(Struct, frozen=True):
    """One sweep. `at` is the monotonic time in seconds at which it began.

    `error` is set where NVML itself did not start or count (then there are no GPUs). `slow_at` is
    when what costs most was read (links, banks, processes, thresholds): the child may read it less
    often than it sweeps, and repeats the last values. `events` are the newest ones, oldest first:
    at least the last 64, so a reader that saw an older snapshot finds those that came since by
    their `at`.
    """

    at: float
    gpus: tuple[GpuState, ...] = ()
    error: NvmlError | None = None
    events: tuple[NvmlEvent, ...] = ()
    slow_at: float | None = None
