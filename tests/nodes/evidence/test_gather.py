"""What a node keeps, what it leaves out, and what a hostile one can make of it."""

import errno
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import time
import tracemalloc
from pathlib import Path

import pytest
from msgspec.structs import replace

from hpctl.detection.config import AgentConfig, EvidenceStorageConfig
from hpctl.detection.settings import AgentSettings
from hpctl.detection.spool import FindingsSpool
from hpctl.nodes.evidence import agent, archive, collect, gather
from hpctl.nodes.evidence.gather import (
    EvidenceGatherRequest,
    decode_gather_result,
    encode_gather_request,
)
from hpctl.toolkit.compat import SAFE_PATH
from hpctl.vocabulary.evidence import (
    EVIDENCE_CHECK,
    KEPT,
    MOST_BYTES,
    NOT_KEPT,
    EvidenceCollectionOrder,
    is_evidence_archive_stored,
)
from hpctl.vocabulary.model import AgentReport, DeviceVerdict, Finding
from tests.fakes.values import at, finding, generation
from tests.nodes.evidence.test_redact import KEY_ID, SECRET
from tests.waiting import until

SECRETS = (KEY_ID, SECRET, "hunter2xyz", "hf_AbCdEfGhIjKlMnOpQrSt")
SAYS = f"echo 'kernel: {KEY_ID} {SECRET} password=hunter2xyz --token hf_AbCdEfGhIjKlMnOpQrSt'"


@pytest.fixture
def machine(tmp_path):
    """A machine's root, an evidence directory and a spool."""
    for name in ("root/usr/bin", "root/proc/self", "evidence", "spool", "tmp"):
        (tmp_path / name).mkdir(parents=True, mode=0o700)
    return tmp_path


def install(machine: Path, name: str, body: str) -> None:
    path = machine / "root/usr/bin" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def order(recovery: str = "n-1") -> EvidenceCollectionOrder:
    first = at(0).timestamp()
    return EvidenceCollectionOrder(
        recovery, generation(), first + 60, first, "reboot", "xid-79: off the bus"
    )


def request(machine: Path, **changes) -> EvidenceGatherRequest:
    values = {
        "order": order(), "directory": str(machine / "evidence"), "root": str(machine / "root"),
        "spool": str(machine / "spool"), **changes,
    }  # fmt: skip
    return EvidenceGatherRequest(**values)


def keep(machine: Path, **changes):
    """Gather in a separate process, as the agent does."""
    done = subprocess.run(
        [sys.executable, *SAFE_PATH, agent.MODULE],
        input=encode_gather_request(request(machine, **changes)), capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return decode_gather_result(done.stdout)


def read(machine: Path, name: str = "n-1.tar.gz") -> dict[str, str]:
    with tarfile.open(machine / "evidence" / name) as packed:
        texts = {m.name: packed.extractfile(m).read().decode() for m in packed.getmembers()}
    assert all(name.startswith("n-1/") for name in texts)
    return {Path(name).stem: text for name, text in texts.items()}


def test_an_archive_holds_what_the_machine_says_without_secrets(machine, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("HF_TOKEN", SECRETS[3])
    for program in ("dmesg", "journalctl", "nvidia-smi", "dcgmi", "lspci", "ps", "systemctl"):
        install(machine, program, f"{SAYS}; env; echo {program} $*")
    install(machine, "ethtool", "echo rx_drops: 12")
    install(
        machine,
        "nvidia-bug-report.sh",
        f'while [ "$1" != --output-file ]; do shift; done; ({SAYS}; echo report) | gzip > "$2.gz"',
    )
    (machine / "root/proc/self/mounts").write_text(
        f"//s/x /mnt cifs rw,username=a,password={SECRETS[2]} 0 0\n"
    )
    (machine / "root/sys/class/net/eth0/device").mkdir(parents=True)
    counters = machine / "root/sys/class/infiniband/efa0/ports/1/hw_counters"
    counters.mkdir(parents=True)
    (counters / "rx_drops").write_text("7\n")
    found = AgentReport(
        "n1", generation().instance, generation().boot, 1, at(1), at(0), (finding(),)
    )
    FindingsSpool(machine / "spool").save(found, acked=True)
    result = keep(machine, commands={"disks": ("/bin/echo", f"disk {SECRETS[0]}")})
    body = (machine / "evidence/n-1.tar.gz").read_bytes()
    assert (result.why, result.size) == ("", len(body))
    assert result.sha256 == hashlib.sha256(body).hexdigest()
    texts = read(machine)
    assert texts.keys() == {
        *("order", "findings", "mounts", "rdma-counters", "dmesg", "nvidia-smi", "dcgm-health"),
        *("dcgm-discovery", "fabricmanager", "lspci", "processes", "journal", "ethtool-eth0"),
        *("site-disks", "nvidia-bug-report"),
    }
    assert "before: reboot" in texts["order"]
    assert '"code":"79"' in texts["findings"]
    assert "rx_drops: 7" in texts["rdma-counters"]
    assert "rx_drops: 12" in texts["ethtool-eth0"]
    assert "nvidia-smi -q" in texts["nvidia-smi"]
    assert "--since=2026-03-01 11:50:00 UTC" in texts["journal"]
    assert "comm" in texts["processes"]
    assert "report" in texts["nvidia-bug-report"]
    assert "disk " in texts["site-disks"]
    for name, text in texts.items():
        assert not any(secret in text for secret in SECRETS), name
    assert [p.name for p in (machine / "evidence").iterdir()] == ["n-1.tar.gz"]


def test_a_machine_without_any_program_keeps_what_there_is(machine):
    assert keep(machine).names == ("order",)


def test_endless_huge_hanging_and_linked_sources_are_bounded(machine, monkeypatch):
    monkeypatch.setattr(gather, "COLLECT_S", 8.0)
    monkeypatch.setattr(collect, "MOST_ITEM", 200_000)
    monkeypatch.setattr(collect, "MOST_REPORT", 200_000)
    install(machine, "dmesg", "exec yes 'endless line'")
    install(machine, "journalctl", "exec tr '\\0' x < /dev/zero")
    install(machine, "nvidia-smi", "exec sleep 600")
    install(
        machine,
        "nvidia-bug-report.sh",
        'while [ "$1" != --output-file ]; do shift; done; yes bomb | head -c 9000000'
        ' | gzip > "$2.gz"',
    )
    secret = machine / "secret"
    secret.write_text("the content of a file that a link names\n")
    counters = machine / "root/sys/class/infiniband/efa0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "linked").symlink_to(secret)
    subprocess.run(["mkfifo", counters / "pipe"], check=True)
    (machine / "root/proc/self/mounts").symlink_to(secret)
    begun = time.monotonic()
    wanted = request(machine)
    collector_limit = {c.name: c.limit_s for c in collect.COMMANDS}
    assert max(collector_limit.values()) <= 20
    result = gather.gather_evidence(wanted)
    assert time.monotonic() - begun < 60
    assert result.why == ""
    texts = read(machine)
    assert "[ended: it says too much]" in texts["dmesg"]
    assert "[ended: it took too long]" in texts["nvidia-smi"]
    assert all(len(text) < 1_000_000 for text in texts.values())
    assert not any("a link names" in text for text in texts.values())


def test_an_archive_is_never_larger_than_its_bound(machine, monkeypatch):
    monkeypatch.setattr(archive, "MOST_BYTES", 10_000)
    kept = archive.EvidenceArchiveWriter(machine / "evidence", "n-1.tar.gz")
    kept.add("dmesg", (f"{n}\n".encode() for n in range(10_000_000)))
    kept.add("journal", iter([b"later\n"]))
    kept.close()
    texts = read(machine)
    assert texts["dmesg"].endswith("[ended: the archive is full]\n")
    assert sum(map(len, texts.values())) < 10_200


def test_a_long_text_takes_little_memory(machine):
    """The agent's unit has 224 MB for everything, and NVIDIA's report alone may have 24."""
    kept = archive.EvidenceArchiveWriter(machine / "evidence", "n-1.tar.gz")
    line = b"x" * 8191 + b"\n"
    tracemalloc.start()
    try:
        kept.add("nvidia-bug-report", (line for _ in range(collect.MOST_REPORT // len(line))))
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    kept.close()
    assert len(read(machine)["nvidia-bug-report"]) == collect.MOST_REPORT
    assert most < 4 * 1024 * 1024


@pytest.mark.parametrize("mode", [0o777, 0o1777])
def test_a_directory_to_which_others_may_write_takes_nothing(machine, mode):
    (machine / "evidence").chmod(mode)
    assert "others may write to it" in keep(machine).why


def test_a_directory_that_is_missing_or_a_link_takes_nothing(machine):
    assert "No such file" in keep(machine, directory=str(machine / "none")).why
    (machine / "link").symlink_to(machine / "evidence")
    assert keep(machine, directory=str(machine / "link")).why
    assert not any((machine / "evidence").iterdir())


def test_a_planted_link_in_the_archives_place_is_replaced_and_not_followed(machine):
    target = machine / "target"
    target.write_text("untouched")
    (machine / "evidence/n-1.tar.gz").symlink_to(target)
    assert keep(machine).why == ""
    assert target.read_text() == "untouched"
    assert not (machine / "evidence/n-1.tar.gz").is_symlink()


def make_keeper(machine: Path, found: list[Finding], earlier=(), directory=None):
    place = str(machine / "evidence") if directory is None else directory
    config = AgentConfig(evidence=EvidenceStorageConfig(directory=place))
    mine = generation()
    settings = AgentSettings(
        (), mine.node, mine.instance, mine.boot,
        root=machine / "root", spool=machine / "spool", config=config,
    )  # fmt: skip
    return agent.NodeEvidenceRunner(settings, found.extend, earlier)


def test_a_full_temporary_directory_is_an_answer(machine, monkeypatch):
    def refuse():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(agent.tempfile, "TemporaryFile", refuse)
    found: list[Finding] = []
    make_keeper(machine, found).begin(order())
    until(lambda: found)
    assert (found[0].verdict, found[0].code) == (DeviceVerdict.WARN, NOT_KEPT)
    assert "No space left" in found[0].detail


def test_an_agent_keeps_evidence_once_a_recovery_says_so_and_tells_the_node(machine, monkeypatch):
    written: list[str] = []
    monkeypatch.setattr(agent.syslog, "syslog", lambda _level, text: written.append(text))
    found: list[Finding] = []
    keeper = make_keeper(machine, found)
    for _ in range(2):
        keeper.begin(order())
    until(lambda: found)
    make_keeper(machine, found, earlier=tuple(found)).begin(order())  # it was started again
    time.sleep(0.1)
    (answer,) = found
    assert (answer.check, answer.device, answer.code) == (EVIDENCE_CHECK, "n-1", KEPT)
    assert is_evidence_archive_stored(answer)
    assert "order" in answer.detail
    (line,) = written
    assert line == "hpctl is about to reboot this node: recovery n-1, xid-79: off the bus"


def test_a_line_in_the_nodes_log_is_one_line(monkeypatch):
    written: list[str] = []
    monkeypatch.setattr(agent.syslog, "syslog", lambda _level, text: written.append(text))
    agent.log_upcoming_remedy(
        replace(order(), remedy="replace", why="xid-79\nroot: all is well\x1b[2J")
    )
    (line,) = written
    assert line.startswith("hpctl is about to replace this node: recovery n-1, xid-79")
    assert line.isprintable()


def test_an_agent_without_a_directory_or_with_a_process_that_hangs_says_so(machine, monkeypatch):
    found: list[Finding] = []
    make_keeper(machine, found, directory="").begin(order())
    until(lambda: found)
    assert (found[0].code, "names no evidence.directory" in found[0].detail) == (NOT_KEPT, True)
    monkeypatch.setattr(agent, "GATHER_S", 0.5)
    monkeypatch.setattr(agent, "MODULE", "tests.nodes.evidence.hangs")
    make_keeper(machine, found).begin(order("n-2"))
    until(lambda: len(found) == 2)
    assert "took more than" in found[1].detail
    assert not is_evidence_archive_stored(found[1])


def test_bytes_that_are_no_text_are_kept_as_text(machine):
    kept = archive.EvidenceArchiveWriter(machine / "evidence", "n-1.tar.gz")
    kept.add("dmesg", gather.redact_stream(io.BytesIO(b"\xff\0x\x1b[2J\n")))
    kept.close()
    assert read(machine)["dmesg"] == "\ufffd x\x1b[2J\n"
    assert MOST_BYTES == 64 * 1024 * 1024
