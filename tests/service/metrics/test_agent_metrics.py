"""The agent's endpoint: what its checks saw last, for the head nodes alone; and how it is found."""

import re
import socket
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.detection import metrics
from hpctl.detection.checks.host_disk import DiskSpaceSample as Disks
from hpctl.detection.checks.host_disk import FileSystemUsage
from hpctl.detection.checks.host_edac import EdacCounts
from hpctl.detection.checks.host_mounts import MountProbeResult
from hpctl.detection.checks.host_nvme import NvmeController
from hpctl.detection.checks.neuron_reading import NeuronDevice
from hpctl.detection.metrics import (
    PREFIX,
    MetricsServer,
    list_agent_metric_samples,
    load_metric_series_descriptions,
    render_prometheus_text,
)
from hpctl.detection.nvml.snapshot import (
    ClockThrottleTimes,
    GpuEccCounters,
    GpuRowRemapping,
    GpuState,
    NvlinkState,
    NvmlSnapshot,
    PcieLinkState,
)
from hpctl.detection.rdma_counters import (
    CounterSweepTrace,
    DeviceCounterReading,
    DeviceCounterSweep,
)
from hpctl.engine.config import MetricsSection
from hpctl.service.metrics import DaemonMetrics
from hpctl.toolkit.errors import HpctlError
from hpctl.vocabulary.cloud_facts import InstanceGroup
from hpctl.vocabulary.model import DeviceVerdict
from hpctl.vocabulary.policy import RecoveryPolicy
from hpctl.wire.heads import AGENT_METRICS_PORT
from tests.agent_process import AgentProcess
from tests.fakes.values import finding, node_name, view_of
from tests.intakes import get
from tests.process import free_port, promtool
from tests.service.metrics.test_metrics import HOSTILE
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.integration

FULL = GpuState(
    0,
    "GPU-1",
    "0000:c1:00.0",
    "NVIDIA H100",
    "96.00",
    utilization=97,
    sm_clock_mhz=1980,
    power_mw=650_000,
    temperature_c=61,
    memory_temperature_c=88,
    throttle=ClockThrottleTimes(0, 2_500_000_000, 0),
    remap=GpuRowRemapping(1, 2, True, False),
    ecc=GpuEccCounters(volatile_uncorrected=3, volatile_corrected=4),
    pcie=PcieLinkState(5, 5, 16, 16, 7),
    nvlinks=(NvlinkState(0, True, 1, 2), NvlinkState(1, False, 3, None)),
)
SEEN = {
    "gpu.clocks": NvmlSnapshot(9.0, (replace(FULL, temperature_c=1),)),
    "gpu.ecc": NvmlSnapshot(10.0, (FULL, GpuState(1))),
    "efa.errors": CounterSweepTrace(
        DeviceCounterSweep(1.0, {"rdmap79s0": DeviceCounterReading((1, 1), {"retrans_pkts": 12})})
    ),
    "host.disk": Disks((FileSystemUsage("/", False, 100, 40, 60),)),
    "host.mounts": (MountProbeResult("/fsx", "lustre", 3.5),),
    "host.nvme": (NvmeController("nvme0", "x", "live"), NvmeController("nvme1", "x", "dead")),
    "host.edac": (EdacCounts("mc0", 1, 2),),
    "neuron.errors": (NeuronDevice("neuron0", {"sram_ecc_uncorrected": 5}),),
}


def lines(text: bytes) -> dict[str, float]:
    found = (line.rpartition(" ") for line in text.decode().splitlines() if line[0] != "#")
    return {name.removeprefix(PREFIX): float(value) for name, _, value in found}


def test_it_prints_what_its_checks_saw_last_in_base_units():
    notes = [
        replace(finding(), verdict=DeviceVerdict.NOTE, code=code, count=20) for code in ("13", "31")
    ]
    found_now = [finding(), finding(), *notes]
    text = render_prometheus_text(
        list_agent_metric_samples(SEEN, iter(found_now), {"efa.retrans_ratio": 0.25})
    )
    assert promtool("check", "metrics", input=text.decode()) == ""
    found = lines(text)
    wanted = {
        'findings{check="kernel.xid",verdict="fail"}': 2,
        'findings{check="kernel.xid",verdict="note"}': 2, 'notes_total{check="kernel.xid"}': 40,
        'peer_value{gauge="efa.retrans_ratio"}': 0.25, 'gpu_temperature_celsius{gpu="0"}': 61,
        'gpu_power_watts{gpu="0"}': 650, 'gpu_sm_clock_hertz{gpu="0"}': 1.98e9,
        'gpu_utilization_ratio{gpu="0"}': 0.97,
        'gpu_throttled_seconds_total{gpu="0",reason="hw_thermal"}': 2.5,
        'gpu_ecc_errors_total{gpu="0",type="uncorrected"}': 3, 'gpu_remap_pending{gpu="0"}': 1,
        'gpu_pcie_replays_total{gpu="0"}': 7, 'gpu_nvlinks_active{gpu="0"}': 1,
        'gpu_nvlink_errors_total{gpu="0",type="replay"}': 4,
        'rdma_events_total{device="rdmap79s0",counter="retrans_pkts"}': 12,
        'filesystem_free_bytes{mountpoint="/"}': 60,
        'mount_silent_seconds{mountpoint="/fsx",fstype="lustre"}': 3.5,
        'nvme_live{device="nvme1"}': 0, 'memory_errors_total{controller="mc0",type="corrected"}': 2,
        'neuron_errors_total{device="neuron0",counter="sram_ecc_uncorrected"}': 5,
    }  # fmt: skip
    assert {name: found.get(name) for name in wanted} == pytest.approx(wanted)
    assert 'gpu_temperature_celsius{gpu="1"}' not in found, "what a GPU does not say is no zero"
    others = {"cpu_ratio", "resident_memory_bytes", "nvml_child_resident_memory_bytes"}
    assert {name.partition("{")[0] for name in found} | others == set(
        load_metric_series_descriptions()
    )


def test_no_name_that_a_user_chose_makes_a_series_or_breaks_a_line():
    chosen = [replace(finding(), check=f"{HOSTILE}{n}") for n in range(50)]
    text = render_prometheus_text(
        list_agent_metric_samples(
            {"host.mounts": (MountProbeResult(HOSTILE * 99, "nfs"),)}, chosen, {}
        )
    )
    assert promtool("check", "metrics", input=text.decode()) == ""
    assert lines(text)['findings{check="other",verdict="fail"}'] == 50
    assert len(lines(text)) == 3


@pytest.fixture
def endpoint():
    made = MetricsServer("127.0.0.1:0", ["127.0.0.1"], [], lambda: b"x 1\n")
    made.start()
    yield made
    made.stop()
    made.join(5)


def ask(port: int, request) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_it_answers_one_path_and_a_slow_client_costs_it_seconds(endpoint, monkeypatch):
    assert get(endpoint.port, "/metrics") == "x 1\n"
    assert ask(endpoint.port, b"GET / HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 404")
    assert ask(endpoint.port, b"POST /metrics HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 404")
    assert ask(endpoint.port, b"A" * metrics.MOST_REQUEST).startswith(b"HTTP/1.1 404")
    monkeypatch.setattr(metrics, "REQUEST_S", 0.2)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", endpoint.port)) as slow:
        slow.sendall(b"GET /met")
        assert get(endpoint.port, "/metrics") == "x 1\n"
    assert time.monotonic() - began < PATIENCE_S / 2


def test_it_is_for_the_head_nodes_this_host_and_the_hosts_that_are_given():
    made = MetricsServer(
        "127.0.0.1:0", ["192.0.2.7", "no.such.host.invalid"], ["198.51.100.0/24"], bytes
    )
    made.stop()
    peers = ("127.0.0.1", "::1", "192.0.2.7", "198.51.100.9", "192.0.2.8")
    assert [made.is_allowed(peer) for peer in peers] == [True, True, True, True, False]
    for listen, allow in (("127.0.0.1:99999", []), ("nowhere", []), ("127.0.0.1:0", ["x/y"])):
        with pytest.raises(HpctlError, match="cannot serve its metrics"):
            MetricsServer(listen, [], allow, bytes)


def test_the_agent_itself_serves_within_its_memory(tmp_path):
    port = free_port()
    agent = AgentProcess(tmp_path, "http://127.0.0.1:9", tmp_path / "no munge")
    agent.start(HPCTL_AGENT_METRICS=f"127.0.0.1:{port}")
    try:
        until(lambda: _up(port), 20)
        found = lines(get(port, "/metrics").encode())
        assert 1e6 < found["resident_memory_bytes"] < 40e6
        threads = [threading.Thread(target=get, args=(port, "/metrics")) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        status = Path(f"/proc/{agent.process.pid}/status").read_text()
        peak_kb = int(re.findall(r"VmHWM:\s+(\d+)", status)[0])
        assert peak_kb * 1024 < 40e6
    finally:
        assert agent.end() == 0


def _up(port: int) -> bool:
    try:
        return "hpctl_agent_info" in get(port, "/metrics")
    except OSError:
        return False


def test_prometheus_gets_every_agent_that_was_heard():
    made, view = DaemonMetrics(agent_port=9), view_of(nodes=3)
    assert made.targets() == []
    nodes = {
        name: replace(node, address=f"10.0.0.{n}" if n != 2 else "fd00::2", partitions=("b", "a"))
        for n, (name, node) in enumerate(view.scheduler.nodes.items(), 1)
    }
    health = {name: h for name, h in view.health.items() if name != node_name(3)}
    group = {"workers": InstanceGroup("workers", "ml.p5.48xlarge")}
    seen = {"scheduler": replace(view.scheduler, nodes=nodes), "health": health}
    made.cycle(
        0.1, view_of(**seen, provider=replace(view.provider, groups=group)), RecoveryPolicy()
    )
    labels = {"instance_group": "workers", "instance_type": "ml.p5.48xlarge", "partition": "a,b"}
    assert made.targets() == [
        {"targets": ["10.0.0.1:9"], "labels": {"instance": "n1", **labels}},
        {"targets": ["[fd00::2]:9"], "labels": {"instance": "n2", **labels}},
    ]
    assert MetricsSection().agent_port == AGENT_METRICS_PORT
