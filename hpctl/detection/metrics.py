"""The agent's last readings for Prometheus, and the endpoint that serves them (docs/adr/0060).

A scrape reads no device: it prints what the checks saw last. The text is rendered here, because
prometheus-client would take 14 of the agent's 40 MB. The endpoint is plain HTTP on a separate
thread, one request at a time, each within REQUEST_S seconds; it answers the head nodes, this host,
and further configured hosts. The text is rendered again at most every KEPT_S seconds.
"""

import ipaddress
import logging
import pkgutil
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final

from hpctl import __version__
from hpctl.detection.nvml.snapshot import GpuState, NvmlSnapshot
from hpctl.detection.rdma_counters import CounterSweepTrace
from hpctl.faults.table import CHECKS, KERNEL_CHECKS
from hpctl.toolkit.bounds import make_printable
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.isolation import ItemProcessingFailure, call_and_capture_failure
from hpctl.vocabulary.model import DeviceVerdict, Finding

log = logging.getLogger(__name__)

PREFIX: Final = "hpctl_agent_"
KEPT_S: Final = 5.0
REQUEST_S: Final = 2.0
PAUSE_S: Final = 0.02
"""Wait after each request: the agent answers at most fifty a second."""
RESOLVED_S: Final = 60.0
MOST_REQUEST: Final = 4096
MOST_LABEL: Final = 128

Sample = tuple[str, Mapping[str, object], float | None]
"""A series' name without PREFIX, its labels, its value; None is left out."""

_GPU: Final[tuple[tuple[str, dict[str, str], str, float], ...]] = (
    ("gpu_temperature_celsius", {}, "temperature_c", 1.0),
    ("gpu_memory_temperature_celsius", {}, "memory_temperature_c", 1.0),
    ("gpu_power_watts", {}, "power_mw", 1e-3),
    ("gpu_utilization_ratio", {}, "utilization", 1e-2),
    ("gpu_sm_clock_hertz", {}, "sm_clock_mhz", 1e6),
    ("gpu_throttled_seconds_total", {"reason": "sw_thermal"}, "throttle.sw_thermal_ns", 1e-9),
    ("gpu_throttled_seconds_total", {"reason": "hw_thermal"}, "throttle.hw_thermal_ns", 1e-9),
    ("gpu_throttled_seconds_total", {"reason": "power_brake"}, "throttle.power_brake_ns", 1e-9),
    ("gpu_ecc_errors_total", {"type": "corrected"}, "ecc.volatile_corrected", 1.0),
    ("gpu_ecc_errors_total", {"type": "uncorrected"}, "ecc.volatile_uncorrected", 1.0),
    ("gpu_remapped_rows", {"type": "correctable"}, "remap.correctable", 1.0),
    ("gpu_remapped_rows", {"type": "uncorrectable"}, "remap.uncorrectable", 1.0),
    ("gpu_remap_pending", {}, "remap.pending", 1.0),
    ("gpu_remap_failed", {}, "remap.failed", 1.0),
    ("gpu_pcie_generation", {}, "pcie.generation", 1.0),
    ("gpu_pcie_width", {}, "pcie.width", 1.0),
    ("gpu_pcie_replays_total", {}, "pcie.replays", 1.0),
)
_KNOWN: Final = frozenset(spec.name for spec in (*CHECKS, *KERNEL_CHECKS))


def load_metric_series_descriptions() -> dict[str, tuple[str, str]]:
    """Return type and meaning of each series, by the table of metrics.md."""
    text = (pkgutil.get_data(__package__, "metrics.md") or b"").decode()
    rows = [line.split("|")[1:-1] for line in text.splitlines()[4:] if line.startswith("|")]
    return {name.strip(): (kind.strip(), meaning.strip()) for name, kind, _, meaning in rows}


def render_prometheus_text(samples: Iterable[Sample]) -> bytes:
    """Return the text format (https://prometheus.io/docs/instrumenting/exposition_formats), version
    0.0.4.

    Values of labels are cut at MOST_LABEL; of two samples with the same labels the first stays.
    """
    found: dict[str, dict[str, float]] = {}
    for name, labels, value in samples:
        if value is not None:
            inner = ",".join(
                f'{key}="{_escape_prometheus_label_value(text)}"' for key, text in labels.items()
            )
            found.setdefault(name, {}).setdefault(f"{{{inner}}}" if inner else "", float(value))
    lines = []
    for name, (kind, meaning) in load_metric_series_descriptions().items():
        if name in found:
            label = name.removesuffix("_total").replace("_", " ")
            lines += [f"# HELP {PREFIX}{name} {meaning or label}", f"# TYPE {PREFIX}{name} {kind}"]
            lines += [f"{PREFIX}{name}{labels} {value!r}" for labels, value in found[name].items()]
    return "\n".join([*lines, ""]).encode()


def _escape_prometheus_label_value(text: object) -> str:
    plain = make_printable(str(text))[:MOST_LABEL]
    return plain.replace("\\", "\\\\").replace('"', '\\"')


def list_agent_metric_samples(
    seen: Mapping[str, Any], findings: Iterable[Finding], gauges: Mapping[str, float]
) -> Iterator[Sample]:
    """Yield samples of what the checks saw last, by their names, what they report, and their
    gauges.

    A check that is not hpctl's own is `other`: its name may be any text.
    """
    yield "info", {"version": __version__}, 1.0
    yield from _list_finding_metric_samples(tuple(findings))
    for name, value in gauges.items():
        if name.startswith("job"):
            continue  # jobs come and go: each would be a permanent series
        yield "peer_value", {"gauge": name}, value
    sweeps = [sample for sample in seen.values() if isinstance(sample, NvmlSnapshot)]
    if sweeps:
        for gpu in max(sweeps, key=lambda sweep: sweep.at).gpus:
            yield from _list_gpu_metric_samples(gpu)
    for sample in seen.values():
        if isinstance(sample, CounterSweepTrace):
            yield from _list_rdma_metric_samples(sample)
    yield from _list_host_metric_samples(seen)


def _list_finding_metric_samples(findings: Sequence[Finding]) -> Iterator[Sample]:
    counted = Counter((f.check if f.check in _KNOWN else "other", str(f.verdict)) for f in findings)
    for (check, verdict), count in counted.items():
        yield "findings", {"check": check, "verdict": verdict}, count
    notes: Counter[str] = Counter()
    for finding in findings:
        if finding.verdict is DeviceVerdict.NOTE:
            notes[finding.check if finding.check in _KNOWN else "other"] += finding.count
    for check, count in notes.items():
        yield "notes_total", {"check": check}, count


def _list_rdma_metric_samples(trace: CounterSweepTrace) -> Iterator[Sample]:
    for device, reading in trace.now.devices.items():
        for counter, count in reading.values.items():
            yield "rdma_events_total", {"device": device, "counter": counter}, count


def _list_gpu_metric_samples(gpu: GpuState) -> Iterator[Sample]:
    label = {"gpu": gpu.index}
    yield "gpu_info", {**label, "device": gpu.device, "model": gpu.name, "vbios": gpu.vbios}, 1.0
    for name, labels, path, factor in _GPU:
        value = attrgetter(path)(gpu)
        yield name, {**label, **labels}, None if value is None else value * factor
    if gpu.nvlinks:
        yield "gpu_nvlinks_active", label, sum(link.active is True for link in gpu.nvlinks)
        for kind, path in (("replay", "replays"), ("recovery", "recoveries")):
            counts = [n for link in gpu.nvlinks if (n := getattr(link, path)) is not None]
            total = sum(counts) if counts else None
            yield "gpu_nvlink_errors_total", {**label, "type": kind}, total


def _list_host_metric_samples(seen: Mapping[str, Any]) -> Iterator[Sample]:
    disks = seen.get("host.disk")
    for disk in disks.disks if disks is not None else ():
        yield "filesystem_size_bytes", {"mountpoint": disk.point}, disk.size
        yield "filesystem_free_bytes", {"mountpoint": disk.point}, disk.free
    for mount in seen.get("host.mounts") or ():
        labels = {"mountpoint": mount.point, "fstype": mount.kind}
        yield "mount_silent_seconds", labels, mount.silent_s
    for controller in seen.get("host.nvme") or ():
        yield "nvme_live", {"device": controller.name}, controller.state == "live"
    for memory in seen.get("host.edac") or ():
        for kind in ("corrected", "uncorrected"):
            labels = {"controller": memory.controller, "type": kind}
            yield "memory_errors_total", labels, getattr(memory, kind)
    for device in seen.get("neuron.errors") or ():
        for counter, count in device.errors.items():
            yield "neuron_errors_total", {"device": device.name, "counter": counter}, count


class MetricsServer(threading.Thread):
    """A server of GET /metrics until stopped. Its failures are logged and do not affect the
    agent."""

    def __init__(
        self, listen: str, heads: Sequence[str], allow: Sequence[str], text: Callable[[], bytes]
    ) -> None:
        """Listen on HOST:PORT. `heads`: their hosts; `allow`: networks. Raises HpctlError."""
        super().__init__(name="metrics", daemon=True)
        host, _, port = listen.rpartition(":")
        try:
            self._allow = [ipaddress.ip_network(one) for one in allow]
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            if not 0 <= int(port) <= 65535:
                raise ValueError(f"{port} is no port")
            self._socket = socket.create_server((host.strip("[]"), int(port)), family=family)
        except (OSError, ValueError) as error:
            hint = "Name another HOST:PORT with --metrics, or none; networks with --metrics-allow."
            raise HpctlError(
                f"the agent cannot serve its metrics at {listen}: {error}", hint
            ) from error
        self._heads, self._text, self._stopping = heads, text, False
        self._known: tuple[frozenset[str], float] = (frozenset(), 0.0)
        self._made: tuple[bytes, float] = (b"", 0.0)

    @property
    def port(self) -> int:
        """Return the port."""
        return int(self._socket.getsockname()[1])

    def stop(self) -> None:
        """Stop the server; a request under way still ends."""
        self._stopping = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def run(self) -> None:
        """Serve one request after the other."""
        while not self._stopping:
            try:
                connection, peer = self._socket.accept()
                with connection:
                    connection.settimeout(REQUEST_S)
                    self._answer(connection, str(peer[0]).removeprefix("::ffff:"))
            except OSError:
                pass  # a client that left, or the end
            time.sleep(PAUSE_S)

    def _answer(self, connection: socket.socket, peer: str) -> None:
        until, request = time.monotonic() + REQUEST_S, b""
        while b"\r\n\r\n" not in request and len(request) < MOST_REQUEST:
            connection.settimeout(max(until - time.monotonic(), 0.01))
            more = connection.recv(MOST_REQUEST)
            if not more:
                return
            request += more
        status, body = "200 OK", b""
        if not self.is_allowed(peer):
            status, body = "403 Forbidden", b"not a head node: name it in --metrics-allow\n"
        elif not request.startswith((b"GET /metrics ", b"GET /metrics?")):
            status, body = "404 Not Found", b"GET /metrics\n"
        else:
            body = self._get_cached_metrics()
        head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode() + body)

    def _get_cached_metrics(self) -> bytes:
        text, until = self._made
        if time.monotonic() >= until:
            made = call_and_capture_failure("metrics", "metrics", lambda _: self._text(), None)
            if isinstance(made, ItemProcessingFailure):
                log.error("metrics could not be served: %s", made.error)
            text = b"" if isinstance(made, ItemProcessingFailure) else made
            self._made = (text, time.monotonic() + KEPT_S)
        return text

    def is_allowed(self, peer: str) -> bool:
        """Return whether an address may read the metrics."""
        address = ipaddress.ip_address(peer)
        if address.is_loopback or any(address in network for network in self._allow):
            return True
        known, until = self._known
        if peer not in known and time.monotonic() >= until:
            found: set[str] = set()
            for host in self._heads:
                with suppress(OSError, UnicodeError):
                    found |= {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
            known = frozenset(found)
            self._known = (known, time.monotonic() + RESOLVED_S)
        return peer in known
