"""The decoders: what each takes, how it may refuse, and bytes to begin from.

A target fails by raising anything but its own refusals, or by taking more than SLOW_S for
one input of at most MOST bytes.
"""

import tempfile
from collections.abc import Callable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl import config, policies
from hpctl.agent import kmsg
from hpctl.agent.check import CannotTell as NoVerdict
from hpctl.agent.checks.kernel_log import Kernel
from hpctl.agent.outside import hma, plugins, reported
from hpctl.clusters.spec import reading as spec_reading
from hpctl.core import hostlist, model
from hpctl.core.bounds import duration_s
from hpctl.core.compat import UTC, iso_time
from hpctl.core.job_recovery import JobReport
from hpctl.core.journal import EVENT_TYPES
from hpctl.core.run_policy import RunPolicy, registration
from hpctl.daemon import alerts
from hpctl.errors import HpctlError, JournalCorrupt
from hpctl.jobs import crash, job_comment, sbatch_options
from hpctl.jobs.checkpoints import files, hf_trainer, manifest, torch_files
from hpctl.jobs.checkpoints.files import NotWhole
from hpctl.jobs.logs import rules
from hpctl.jobs.logs.follow import LineCutter
from hpctl.jobs.progress import notes
from hpctl.jobs.ras import report
from hpctl.jobs.run import history
from hpctl.protocol import job_reports as job_wire
from hpctl.protocol import reports as wire
from hpctl.protocol.heads import explained
from hpctl.slurm import cli, parse
from hpctl.slurm.records import Hostlists
from hpctl.store.rows import decode
from tests import intakes
from tests.contract.journal.events import signal, taken
from tests.fuzz import intake
from tests.stubs.ras.job import Job, as_json, as_text, job
from tests.unit import checkpoint_files

MOST = 1 << 16
SLOW_S = 10.0
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
DISK = Path(tempfile.mkdtemp(prefix="hpctl-fuzz-"))


class Target(Struct, frozen=True):
    """One decoder."""

    run: Callable[[bytes], object]
    refuses: tuple[type[BaseException], ...] = ()
    seeds: tuple[bytes, ...] = ()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _on_text(run: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda raw: run(_text(raw))


def _on_file(name: str, run: Callable[[Path, str], object]) -> Callable[[bytes], object]:
    """As a file of that name: what reads checkpoints asks for the bytes it wants."""

    def write_and_run(raw: bytes) -> object:
        (DISK / name).write_bytes(raw)
        return run(DISK, name)

    return write_and_run


def _kernel(raw: bytes) -> object:
    lines = _text(raw).split("\n")
    records = [kmsg.Record(0, n, NOW, line) for n, line in enumerate(lines)]
    return Kernel(lambda pid, at: "").findings(records)


def _crash(raw: bytes) -> object:
    return crash.classify(1, _text(raw).split("\n"), at=NOW, policy=RunPolicy())


def _metadata(directory: Path, name: str) -> object:
    with files.opened(directory, name) as file:
        return torch_files.data_files(file)


def _log(raw: bytes) -> object:
    half, cutter = len(raw) // 2, LineCutter()
    return notes.in_log(cutter.cut(raw[:half]) + cutter.cut(raw[half:]))


def _iso(raw: bytes) -> object:
    return iso_time(_text(raw))


def _report() -> model.Report:
    found = model.Finding("kernel.xid", model.Verdict.FAIL, NOW, NOW, "gpu0", "79", "gone", "NVRM")
    return replace(intakes.report(), findings=(found,))


def _ras(release: str, say: Callable[[Job, str], str]) -> bytes:
    return say(job(), release).encode()


def _events() -> tuple[bytes, ...]:
    return tuple(msgspec.json.encode(event) for event in (signal(1), taken(2)))


def _journal(raw: bytes) -> object:
    """The first byte says of which kind the event is."""
    kinds = sorted(EVENT_TYPES)
    return decode(1, kinds[raw[0] % len(kinds)] if raw else "x", _text(raw[1:]))


def _files(pattern: str, most: int = 8) -> tuple[bytes, ...]:
    found = sorted(p for p in ROOT.glob(pattern) if p.is_file())[:most]
    return tuple(path.read_bytes()[:MOST] for path in found)


NODE_TEXT = (
    b"NodeName=n1 Arch=x86_64 CoresPerSocket=1 Gres=gpu:8 NodeAddr=10.0.0.7 NodeHostName=n1"
    b" State=IDLE+DRAIN ThreadsPerCore=1 Partitions=gpu BootTime=2026-03-01T11:00:00"
    b" SlurmdStartTime=2026-03-01T11:00:05 LastBusyTime=2026-03-01T11:30:00"
    b" Reason=hpctl:n-0a62eed6 GPU fell off the bus [root@2026-03-01T11:59:00]\n"
)
MARK = "x"
"""squeue's fields end in a mark that nobody guesses; here the fuzzer may write it as well."""


def _squeue_seed() -> bytes:
    answer = {
        "JobID": "7", "Name": "train", "UserID": "1001", "State": "RUNNING", "NodeList": "n[1-2]",
    }  # fmt: skip
    row = [answer.get(name, "0") for name in parse.FIELDS]
    return f"m{MARK};".join(row).encode() + f"m{MARK}.".encode()


TARGETS: dict[str, Target] = {
    "report": Target(wire.read, (wire.MalformedReportError,), (wire.encode(_report()),)),
    "intake": Target(partial(intake.run, directory=DISK), (), intake.SEEDS),
    "ack": Target(wire.decode_ack, (wire.MalformedReportError,), (b'{"ack":1}',)),
    "request": Target(
        wire.read_request,
        (wire.MalformedReportError,),
        (wire.encode_request("replace", "n1", "ada"),),
    ),
    "job-report": Target(
        job_wire.decode,
        (wire.MalformedReportError,),
        (job_wire.encode(JobReport(model.JobId(7), 0)),),
    ),
    "job-answer": Target(
        job_wire.decode_taken, (wire.MalformedReportError,), (b'{"job":7,"acts":true}',)
    ),
    "refusal": Target(explained, (), (b'{"error":"x","message":"y"}',)),
    "alerts": Target(
        alerts.decode,
        (HpctlError,),
        (b'{"version":"4","alerts":[{"status":"firing","labels":{"node":"n1"},"annotations":{},'
         b'"startsAt":"2026-03-01T12:00:00Z","endsAt":"0001-01-01T00:00:00Z","fingerprint":"a"}]}',),
    ),
    "journal": Target(
        _journal, (JournalCorrupt,), tuple(bytes([n]) + e for n in range(12) for e in _events())
    ),
    "slurm-nodes": Target(
        _on_text(lambda said: parse.nodes(parse.node_lines(said))), (), (NODE_TEXT,)
    ),
    "slurm-jobs": Target(
        lambda raw: parse.jobs(raw, b"", MARK, Hostlists()),
        (parse.FrameError,),
        (_squeue_seed(),),
    ),
    "slurm-lists": Target(
        lambda raw: parse.jobs(_squeue_seed(), raw, MARK, Hostlists()),
        (parse.FrameError,),
        (b"7mx;n[1-4]mx.",),
    ),
    "slurm-config": Target(_on_text(parse.config), (), (b"SlurmctldPort = 6817\n",)),
    "slurm-version": Target(_on_text(parse.version), (), (b"slurm 25.11.7\n",)),
    "reservations": Target(
        _on_text(cli.parse_reservations), (), (b"ReservationName=a Start=x Nodes=n[1-4] C=4\n",)
    ),
    "hostlist": Target(
        _on_text(hostlist.expand), (hostlist.HostlistError,), (b"n[1-4,007],gpu-[1-2]-x,b",)
    ),
    "comment": Target(
        _on_text(registration), (), (b'hpctl:{"policy":{"backoff":{"first_s":1}},"spares":1}',)
    ),
    "ticket": Target(_on_text(job_comment.decode), (), (b'hpctl:{"dir":"/shared/run"} mine',)),
    "kmsg": Target(kmsg.parse, (), (b"4,123,456789,-;NVRM: Xid (PCI:0000:18:00): 79, GPU\n",)),
    "kernel-lines": Target(_kernel, (), _files("tests/cli/kmsg") + _files("tests/corpus/cases/*")),
    "hma": Target(
        _on_text(hma.read_detection),
        (hma.Malformed,),
        (b'{"HealthMonitoringAgentDetectionEvent":"HealthEvent","msg":"DCGM Policy Violation "'
         b',"condition: ":"XID Error","data: ":{"ErrNum":79},"ts":"0001-01-01T00:00:00Z"}',),
    ),
    "plugin": Target(
        plugins.findings,
        (NoVerdict,),
        (b'{"findings":[{"code":"slow","verdict":"fail","detail":"x"}]}',),
    ),
    "plugin-description": Target(plugins.description, (NoVerdict,), (b'{"every_s":60}',)),
    "local-report": Target(
        reported.decode,
        (HpctlError,),
        (b'{"op":"report","check":"report.nhc","code":"x","verdict":"fail"}\n',),
    ),
    "progress": Target(notes.parse, (), (b"hpctl1 token step=4 loss=0.5 rank=1\n",)),
    "job-log": Target(_log, (), _files("tests/jobs/logs/samples/*")),
    "crash": Target(_crash, (), _files("tests/unit/crash_samples/*")),
    "ras-json": Target(report.read_json, (HpctlError,), (_ras("2.30.7", as_json),)),
    "ras-text": Target(
        report.read_text, (HpctlError,), (_ras("2.24.3", as_text), _ras("2.28.3", as_text))
    ),
    "run-history": Target(
        lambda raw: list(history.read_records(raw)), (), (b'{"type":"started"}\n',)
    ),
    "manifest": Target(manifest.decode, (), (b'{"version":1,"step":4,"files":[]}',)),
    "safetensors": Target(
        _on_file("a.safetensors", hf_trainer.prove_safetensors),
        (NotWhole,),
        (b'\x3a\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}    \0\0\0\0',),
    ),
    "torch-zip": Target(
        _on_file("a.pt", torch_files.prove_archive),
        (NotWhole,),
        (checkpoint_files.torch_save({"step": 4}),),
    ),
    "dcp-metadata": Target(
        _on_file(".metadata", _metadata),
        (NotWhole,),
        (checkpoint_files.dcp_metadata([("__0_0.distcp", 0, 64)]),),
    ),
    "batch-script": Target(
        _on_text(partial(sbatch_options.read, "job.sh")),
        (HpctlError,),
        (b"#!/bin/bash\n#SBATCH -N 2\n#HPCTL --checkpoint-dir /a\nsrun x\n",),
    ),
    "log-rules": Target(
        _on_text(rules.parse),
        (HpctlError,),
        (b"rules:\n- name: a\n  logPattern: x\n  expectedStartCutOffInSeconds: 9\n",),
    ),
    "policy": Target(
        _on_text(policies.parse),
        (HpctlError,),
        (policies.example().encode(), b"on: {crash: {ladder: [requeue], hold_same: true}}\n"),
    ),
    "configuration": Target(
        _on_text(config.parse),
        (HpctlError,),
        (b"mode: own\ncluster: {name: a}\nages: {silent_s: 9}\n",),
    ),
    "cluster-file": Target(
        _on_text(spec_reading.parse), (HpctlError,), _files("tests/clusters/files/*.yaml", 3)
    ),
    "duration": Target(_on_text(duration_s), (), (b"1d12h30min",)),
    "time": Target(_iso, (ValueError,), (b"2026-03-01T12:00:00.123Z",)),
}  # fmt: skip


def once(target: Target, raw: bytes) -> Any:
    """Feed one input. Raises what is no refusal of the target's."""
    try:
        return target.run(raw[:MOST])
    except target.refuses:
        return None
