"""How long a person waits for a cluster of 1,000 nodes, where each call to the API takes 50 ms.

Whole commands, from their start to their last line. The service is the emulator, in a process of
its own. The rival is the plain loop over boto3 that the service's own dump tool has: a list, then
one DescribeClusterNode after another.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct

from benchmarks.clusters_at import CLUSTER, LATENCY_S, NODES, REGION
from benchmarks.table import Outcome, Row, median

RUNS = 5
SLICE = 100
"""Nodes that the rival really describes: each costs the same."""
BAR_S = 3.0
MOST_S = 120.0

_COMMANDS = {
    "cluster describe": ["describe"],
    "cluster nodes": ["nodes"],
    "cluster nodes --details": ["nodes", "--details"],
}
_LOOP = f"""
import sys, time, boto3
client = boto3.client("sagemaker", region_name={REGION!r}, endpoint_url=sys.argv[1])
pages = client.get_paginator("list_cluster_nodes").paginate(
    ClusterName={CLUSTER!r}, PaginationConfig={{"PageSize": 100}})
nodes = [node for page in pages for node in page["ClusterNodeSummaries"]]
assert len(nodes) == {NODES}, len(nodes)
begun = time.perf_counter()
for node in nodes[:{SLICE}]:
    client.describe_cluster_node(ClusterName={CLUSTER!r}, NodeId=node["InstanceId"])
print(time.perf_counter() - begun)
"""


class Ran(Struct, frozen=True):
    """One command: from its start to its end, its processor time, its peak memory, its output."""

    seconds: float
    cpu_s: float
    peak_mb: float
    out: str


def run() -> Outcome:
    """Each command in turn, then the loop, all against one emulator."""
    with _emulator() as url:
        env = _env(url)
        taken: dict[str, list[Ran]] = {name: [] for name in _COMMANDS}
        for _ in range(RUNS):
            for name, args in _COMMANDS.items():
                command = [sys.executable, "-m", "hpctl", "cluster", *args, "--cluster", CLUSTER]
                taken[name].append(_timed(command, env))
        loop = _timed([sys.executable, "-c", _LOOP, url], env)
    for name in ("cluster nodes", "cluster nodes --details"):
        assert f"{NODES} node(s) of {CLUSTER}" in taken[name][0].out, name
    one_s = float(loop.out) / SLICE
    whole_s = loop.seconds + (NODES - SLICE) * one_s
    seconds = {name: median([ran.seconds for ran in runs]) for name, runs in taken.items()}
    peaks = {name: max(ran.peak_mb for ran in runs) for name, runs in taken.items()}
    rival = "boto3, one call after another"
    rows = [
        Row(f"hpctl {name}, wall", value, "s", rival, whole_s, BAR_S)
        for name, value in seconds.items()
    ]
    rows += [
        Row(f"hpctl {name}, processor time", median([ran.cpu_s for ran in runs]), "s")
        for name, runs in taken.items()
    ]
    rows += [
        Row(f"hpctl {name}, peak memory", value, "MB", rival, loop.peak_mb)
        for name, value in peaks.items()
    ]
    floor_s = NODES * LATENCY_S / 32
    return Outcome(
        "clusters",
        rows,
        [
            f"{NODES} nodes, {1000 * LATENCY_S:.0f} ms a call; medians of {RUNS} whole processes",
            f"the rival described {SLICE} of them in {float(loop.out):.1f} s, scaled to {NODES}",
            f"--details is {NODES} calls, 32 at once: {floor_s:.1f} s if they cost no processor",
        ],
    )


@contextmanager
def _emulator() -> Iterator[str]:
    """Its endpoint, while it lives."""
    program = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.clusters_at"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        url = program.stdout.readline().strip()
        assert url.startswith("http://"), "the emulator did not come up"
        yield url
    finally:
        program.terminate()
        program.wait(10)


def _env(url: str) -> Mapping[str, str]:
    """Credentials of no account, and none of this machine's configuration."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "HPCTL_"))}
    return {
        **kept,
        "AWS_ACCESS_KEY_ID": "sandbox",
        "AWS_SECRET_ACCESS_KEY": "sandbox",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        "AWS_REGION": REGION,
        "AWS_ENDPOINT_URL_SAGEMAKER": url,
        "SAGEMAKER_RESOURCE_CONFIG_PATH": "/nonexistent",
        "COLUMNS": "200",
    }


def _timed(command: list[str], env: Mapping[str, str]) -> Ran:
    """Run it to its end. Raises CalledProcessError where it fails."""
    with tempfile.TemporaryFile("w+") as out:
        begun = time.perf_counter()
        program = subprocess.Popen(command, stdout=out, env=dict(env))
        until = begun + MOST_S
        while True:
            # wait4 alone tells one child's peak memory; it has no time limit of its own.
            pid, status, used = os.wait4(program.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() > until:
                program.kill()
                raise subprocess.TimeoutExpired(command, MOST_S)
            time.sleep(0.005)
        seconds = time.perf_counter() - begun
        code = program.returncode = os.waitstatus_to_exitcode(status)
        if code:
            raise subprocess.CalledProcessError(code, command)
        out.seek(0)
        cpu_s = used.ru_utime + used.ru_stime
        return Ran(seconds, cpu_s, used.ru_maxrss * 1024 / 1e6, out.read())
