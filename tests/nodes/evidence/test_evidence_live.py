"""Evidence is kept before a remedy destroys a node, and no job waits for it: with a real Slurm."""

import json
import os
import statistics
import sys
import tarfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpctl.nodes.evidence.fetch import EvidenceArchiveReader
from hpctl.nodes.evidence.store import read_archive_texts
from hpctl.vocabulary.evidence import format_evidence_archive_name, parse_stored_evidence_archive
from hpctl.vocabulary.job_recovery import JobRecoverySignal
from hpctl.vocabulary.node_recovery import FELT, NodeRecoverySignal
from tests.daemon.chaos import Chaos, cluster
from tests.live import until
from tests.s3 import BUCKET, s3, s3_endpoint

__all__ = ["s3", "s3_endpoint"]

pytestmark = [pytest.mark.slurm, pytest.mark.integration]
NODES = 8
ROUND = 4
KEY_ID = "AKIA" + "IOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI" + "/K7MDENG/bPxRfiCYEXAMPLEKEY"
SAYS_SECRETS = (
    "#!/bin/sh\n"
    f"echo '2026-01-01T00:00:00 kernel: app {KEY_ID} {SECRET} --password hunter2xyz'\n"
    "echo 'NVRM: Xid (PCI:0000:53:00): 79, GPU has fallen off the bus.'\n"
)


@contextmanager
def keeping_cluster(directory: Path | str):
    """A cluster whose evidence is kept in a directory, or in S3."""
    kept = {"directory": str(directory)}
    agent = {"evidence": {**kept, "commands": {"uptime": ["/bin/echo", "up 3 days"]}}}
    with cluster({"evidence": kept}, nodes=NODES, agent_config=agent) as live:
        for node in live.sandbox.nodes:
            program = live.sandbox.spec.layout.of_node(node) / "hardware/usr/bin/dmesg"
            program.parent.mkdir(parents=True, exist_ok=True)
            program.write_text(SAYS_SECRETS)
            program.chmod(0o755)
        yield live


def lose_nodes(live: Chaos, count: int) -> tuple[list, list[float]]:
    """Break this many nodes at once, each under a job; return their recoveries, and for each job
    the seconds from the fault until it runs again."""
    jobs = [live.start("srun sleep 600") for _ in range(count)]
    nodes = [str(live.job(job).nodes[0]) for job in jobs]
    for node in nodes:
        live.xid(node)
    recoveries = [live.returned(node, 120) for node in nodes]
    delays = []
    for job, node in zip(jobs, nodes, strict=True):
        until(lambda job=job: live.running(job, restarts=1), 60, f"job {job} runs again")
        (rec,) = live.of_job(job)
        seen = [m.at for m in rec.trail if m.signal == JobRecoverySignal.RUNNING_SEEN]
        fault = min(f.first for f in live.last(node).findings)
        delays.append((seen[0] - fault).total_seconds())
        live.sandbox.run(["scancel", str(job)])
    until(live.all_idle, 90, "every node is back")
    return recoveries, delays


def check_kept(recoveries: list, directory: Path) -> None:
    """Every recovery names an archive that is there, whole, and was kept before the node's end."""
    for rec in recoveries:
        kept = [m for m in rec.trail if m.signal == NodeRecoverySignal.EVIDENCE_KEPT]
        assert len(kept) == 1, rec.trail
        archive = parse_stored_evidence_archive(kept[0].why)
        assert archive is not None, kept[0].why
        assert archive.path == str(directory / format_evidence_archive_name(rec.id))
        with EvidenceArchiveReader().open(archive) as file:
            assert read_archive_texts(file)
        remedies = [s.started for s in rec.steps if s.kind in FELT]
        assert remedies
        assert kept[0].at <= min(remedies)


def read_archive(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            Path(m.name).stem: archive.extractfile(m).read().decode() for m in archive.getmembers()
        }


def test_evidence_is_kept_before_each_remedy_and_shown_to_people(tmp_path):
    directory = tmp_path / "evidence"
    directory.mkdir(mode=0o700)
    with keeping_cluster(directory) as live:
        recoveries, _ = lose_nodes(live, ROUND)
        check_kept(recoveries, directory)
        rec = recoveries[0]
        path = directory / format_evidence_archive_name(rec.id)
        texts = read_archive(path)
        assert {"order", "findings", "dmesg", "site-uptime"} <= texts.keys()
        assert "fallen off the bus" in texts["dmesg"]
        assert f"recovery: {rec.id}" in texts["order"]
        assert '"79"' in texts["findings"]
        for secret in (KEY_ID, SECRET, "hunter2xyz"):
            assert not any(secret in text for text in texts.values())
        # A path that is longer than a line of the terminal is broken.
        assert str(path) in live.explained(rec.id).replace(" ", "")
        assert str(path) in live.explained(rec.node).replace(" ", "")


def ask(live: Chaos, s3_endpoint: str, *words: str) -> str:
    """Run `hpctl` as an operator of the sandbox would who reaches this S3."""
    here = f"AWS_ENDPOINT_URL_S3={s3_endpoint}"
    command = ["env", here, sys.executable, "-m", "hpctl", *words]
    return live.sandbox.run(command, check=words[0] != "doctor", timeout=240).stdout


def list_checks(live: Chaos, s3_endpoint: str) -> list[str]:
    """Return what `hpctl doctor` says of evidence."""
    checks = json.loads(ask(live, s3_endpoint, "doctor", "--json"))["checks"]
    return [f"{each['verdict']} {each['what']}" for each in checks if each["name"] == "evidence"]


def test_evidence_in_s3_is_listed_shown_fetched_and_compared(tmp_path, s3, s3_endpoint):
    place = f"s3://{BUCKET}/evidence"
    with keeping_cluster(place) as live:
        (rec,), _ = lose_nodes(live, 1)
        kept = [m for m in rec.trail if m.signal == NodeRecoverySignal.EVIDENCE_KEPT]
        assert len(kept) == 1, rec.trail
        assert kept[0].at <= min(s.started for s in rec.steps if s.kind in FELT)
        listed = ask(live, s3_endpoint, "evidence", "list", "--json")
        assert f"{place}/{format_evidence_archive_name(rec.id)}" in listed
        assert "dmesg.txt" in ask(live, s3_endpoint, "evidence", "show", rec.node)
        ask(live, s3_endpoint, "evidence", "fetch", rec.node, "--to", str(tmp_path))
        texts = read_archive(tmp_path / format_evidence_archive_name(rec.id))
        assert "fallen off the bus" in texts["dmesg"]
        for secret in (KEY_ID, SECRET, "hunter2xyz"):
            assert not any(secret in text for text in texts.values())
        named = f"ok {place}, as the agents of {NODES} nodes have it"
        assert list_checks(live, s3_endpoint) == [named]
        live.reconfigure(evidence={"directory": f"s3://{BUCKET}/other"})
        (said,) = list_checks(live, s3_endpoint)
        assert said.startswith("warn the agents of")
        assert f"name {place}, this configuration names s3://{BUCKET}/other" in said


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_fifty_recoveries_keep_evidence_and_jobs_restart_as_fast(tmp_path):
    directory = tmp_path / "evidence"
    directory.mkdir(mode=0o700)
    count = int(os.environ.get("HPCTL_TEST_RECOVERIES", "50"))
    kept, plain = [], []
    recoveries, others = [], []
    with keeping_cluster(directory) as live:
        # In turn, because the load of the machine changes: a round with evidence, one without.
        while len(recoveries) < count:
            live.reconfigure(evidence={"directory": str(directory)})
            found, delays = lose_nodes(live, min(ROUND, count - len(recoveries)))
            recoveries += found
            kept += delays
            live.reconfigure(evidence={"directory": ""})
            found, delays = lose_nodes(live, len(delays))
            others += found
            plain += delays
    check_kept(recoveries, directory)
    assert not any(rec.evidence for rec in others)
    medians = statistics.median(plain), statistics.median(kept)
    print(f"fault to job running: {medians[0]:.2f} s without, {medians[1]:.2f} s with evidence")
    spread = statistics.pstdev(plain) + statistics.pstdev(kept)
    assert medians[1] - medians[0] < max(1.0, spread)
