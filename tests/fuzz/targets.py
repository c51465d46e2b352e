"""The decoders: what each takes, how it may refuse, and bytes to begin from.

A target fails by raising anything but its own refusals, or by taking more than SLOW_S for
one input of at most MOST bytes.
"""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hpctl.checkpoints import contents, files, patterns, run_records
from hpctl.checkpoints.files import IncompleteCheckpointError
from hpctl.checkpoints.formats import flax_file, hf_trainer, manifest, ocdbt, torch_files
from hpctl.clusters.spec import reading as spec_reading
from hpctl.detection import kmsg
from hpctl.detection.check import CheckResultUnknownError as NoVerdict
from hpctl.detection.kernel.log import KernelLogAnalyzer
from hpctl.detection.outside import hma_records, plugin_json, report_request, verdict_formats
from hpctl.detection.outside.verdict_readers import HealthToolOutput
from hpctl.engine import config
from hpctl.engine.journal.events import EVENT_TYPES
from hpctl.engine.journal.rows import decode_event
from hpctl.jobs import crash
from hpctl.jobs.hangs import ras_report
from hpctl.jobs.logs import rules
from hpctl.jobs.logs.engine import LineSplitter
from hpctl.jobs.run import progress_notes
from hpctl.jobs.sbatch import options
from hpctl.service import alerts
from hpctl.slurm import cli, parse
from hpctl.slurm.records import HostlistCache
from hpctl.toolkit import hostlist
from hpctl.toolkit.bounds import parse_duration
from hpctl.toolkit.compat import UTC, parse_iso_time
from hpctl.toolkit.errors import CorruptJournalError, HpctlError
from hpctl.vocabulary import model, policy_file
from hpctl.vocabulary.job_recovery import JobReport
from hpctl.vocabulary.registration import parse_registration_comment
from hpctl.vocabulary.run_policy import RunPolicy
from hpctl.wire import job_reports as job_wire
from hpctl.wire import reports as wire
from hpctl.wire.heads import format_refusal_response
from tests import reports
from tests.checkpoints import checkpoint_files, ocdbt_files
from tests.engine.journal.events import signal, taken
from tests.fuzz import intake
from tests.stubs.ras.job import as_json, job

MOST = 1 << 16
SLOW_S = 10.0
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ROOT = Path(__file__).parents[2]
DISK = Path(tempfile.mkdtemp(prefix="hpctl-fuzz-"))


class Target(Struct, frozen=True):
    """One decoder."""

    run: Callable[[bytes], object]
    refuses: type[BaseException] | tuple[()] = ()
    seeds: tuple[bytes, ...] = ()


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _on_text(run: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda raw: run(_text(raw))


def _read_tools(text: str) -> None:
    """Read a text in each format of another tool."""
    for name in verdict_formats.FORMAT_NAMES:
        for status in (None, 0, 1):
            with suppress(NoVerdict):
                verdict_formats.parse_health_tool_verdict(
                    name, HealthToolOutput(text, status, "n1")
                )


def _on_file(name: str, run: Callable[[Path, str], object]) -> Callable[[bytes], object]:
    """As a file of that name: what reads checkpoints asks for the bytes it wants."""

    def write_and_run(raw: bytes) -> object:
        (DISK / name).write_bytes(raw)
        return run(DISK, name)

    return write_and_run


def _kernel(raw: bytes) -> object:
    lines = _text(raw).split("\n")
    records = [kmsg.KernelRecord(0, n, NOW, line) for n, line in enumerate(lines)]
    return KernelLogAnalyzer(lambda pid, at: "").findings(records)


def _crash(raw: bytes) -> object:
    return crash.classify_crash(1, _text(raw).split("\n"), at=NOW, policy=RunPolicy())


def _metadata(directory: Path, name: str) -> object:
    with files.open_file(directory, name) as file:
        return torch_files.list_dcp_data_files(file)


def _node(raw: bytes) -> object:
    """The inside of a node: what has the right checksum is believed the more."""
    node = ocdbt_files.node(raw)
    place = DISK / "ocdbt"
    (place / "d").mkdir(parents=True, exist_ok=True)
    (place / "d/aa").write_bytes(node)
    height = raw[0] if raw else 0
    above = ocdbt_files.manifest(0, len(node), height, "d/aa", 0)
    (place / ocdbt.MANIFEST).write_bytes(above)
    return ocdbt.read_value_locations(place)


def _log(raw: bytes) -> object:
    half, cutter = len(raw) // 2, LineSplitter()
    return progress_notes.find_progress_notes_in_log(
        cutter.cut(raw[:half]) + cutter.cut(raw[half:])
    )


def _iso(raw: bytes) -> object:
    return parse_iso_time(_text(raw))


def _report() -> model.AgentReport:
    found = model.Finding(
        "kernel.xid", model.DeviceVerdict.FAIL, NOW, NOW, "gpu0", "79", "gone", "NVRM"
    )
    return replace(reports.report(), findings=(found,))


def _ras() -> bytes:
    return as_json(job()).encode()


def _events() -> tuple[bytes, ...]:
    return tuple(msgspec.json.encode(event) for event in (signal(1), taken(2)))


def _journal(raw: bytes) -> object:
    """The first byte says of which kind the event is."""
    kinds = sorted(EVENT_TYPES)
    return decode_event(1, kinds[raw[0] % len(kinds)] if raw else "x", _text(raw[1:]))


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


def _target(run, *seeds, refuses=()):
    return Target(run, refuses, seeds)


MALFORMED = wire.MalformedReportError
ALERT = (
    b'{"version":"4","alerts":[{"status":"firing","labels":{"node":"n1"},"annotations":{},'
    b'"startsAt":"2026-03-01T12:00:00Z","endsAt":"0001-01-01T00:00:00Z","fingerprint":"a"}]}'
)
DETECTION = (
    b'{"HealthMonitoringAgentDetectionEvent":"HealthEvent","msg":"DCGM Policy Violation "'
    b',"condition: ":"XID Error","data: ":{"ErrNum":79},"ts":"0001-01-01T00:00:00Z"}'
)
TENSOR = b'\x3a\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}    \0\0\0\0'
STREAM = checkpoint_files.legacy_stream(4)
FLAX = checkpoint_files.flax_map(4)
ARRAY = b"\x93NUMPY\1\0\x76\0" + b"{'descr': '<f4', 'shape': (2,)}".ljust(126)
RULES = b"rules:\n- name: a\n  logPattern: x\n  expectedStartCutOffInSeconds: 9\n"
LADDER = b"on: {crash: {ladder: [requeue], hold_same: true}}\n"
SCRIPT = b"#!/bin/bash\n#SBATCH -N 2\n#HPCTL --checkpoint-dir /a\nsrun x\n"

TARGETS: dict[str, Target] = {
    "report": _target(
        wire.decode_agent_message, wire.encode_agent_report(_report()), refuses=MALFORMED
    ),
    "intake": _target(partial(intake.run, directory=DISK), *intake.SEEDS),
    "ack": _target(wire.decode_report_ack, b'{"ack":1}', refuses=MALFORMED),
    "request": _target(
        wire.decode_operator_request,
        wire.encode_operator_request("replace", "n1", "ada"),
        refuses=MALFORMED,
    ),
    "job-report": _target(
        job_wire.decode_job_report, job_wire.encode_job_report(JobReport(7, 0)), refuses=MALFORMED
    ),
    "job-answer": _target(
        job_wire.decode_job_report_ack, b'{"job":7,"acts":true}', refuses=MALFORMED
    ),
    "refusal": _target(format_refusal_response, b'{"error":"x","message":"y"}'),
    "alerts": _target(alerts.decode_alertmanager_notification, ALERT, refuses=HpctlError),
    "journal": _target(
        _journal,
        *(bytes([n]) + e for n in range(12) for e in _events()),
        refuses=CorruptJournalError,
    ),
    "slurm-nodes": _target(
        _on_text(lambda text: parse.parse_scontrol_nodes(parse.split_scontrol_node_lines(text))),
        NODE_TEXT,
    ),
    "slurm-jobs": _target(
        lambda raw: parse.parse_squeue_jobs(raw, b"", MARK, HostlistCache()),
        _squeue_seed(),
        refuses=parse.IncompleteSqueueRecordError,
    ),
    "slurm-lists": _target(
        lambda raw: parse.parse_squeue_jobs(_squeue_seed(), raw, MARK, HostlistCache()),
        b"7mx;n[1-4]mx.",
        refuses=parse.IncompleteSqueueRecordError,
    ),
    "slurm-config": _target(_on_text(parse.parse_scontrol_config), b"SlurmctldPort = 6817\n"),
    "slurm-version": _target(_on_text(parse.parse_slurm_version), b"slurm 25.11.7\n"),
    "reservations": _target(
        _on_text(cli.parse_reservations), b"ReservationName=a Start=x Nodes=n[1-4] C=4\n"
    ),
    "hostlist": _target(
        _on_text(hostlist.expand_hostlist),
        b"n[1-4,007],gpu-[1-2]-x,b",
        refuses=hostlist.HostlistError,
    ),
    "comment": _target(
        _on_text(parse_registration_comment),
        b'hpctl:{"policy":{"backoff":{"first_s":1}},"spares":1}',
        b'hpctl:{"ckpt":"/shared/run","tiers":["s3://b/c"],"fast":{"dir":"/nvme"}} mine',
    ),
    "kmsg": _target(
        kmsg.parse_kmsg_record, b"4,123,456789,-;NVRM: Xid (PCI:0000:18:00): 79, GPU\n"
    ),
    "kernel-lines": _target(
        _kernel, *_files("tests/cli/kmsg"), *_files("tests/detection/corpus/cases/*")
    ),
    "hma": _target(
        _on_text(hma_records.parse_health_agent_detection),
        DETECTION,
        refuses=hma_records.MalformedHealthAgentDetectionError,
    ),
    "plugin": _target(
        plugin_json.parse_plugin_findings,
        b'{"findings":[{"code":"slow","verdict":"fail","detail":"x"}]}',
        refuses=NoVerdict,
    ),
    "plugin-description": _target(
        plugin_json.parse_plugin_description, b'{"every_s":60}', refuses=NoVerdict
    ),
    "tool-verdict": _target(
        _on_text(_read_tools),
        b'{"overall_severity":"CRITICAL","a":[{"category":"xid","max_severity":"CRITICAL"}]}',
        b'{"body":{"Overall Health":{"value":"Failure"},"GPU":{"children":{"0":{"value":"x",'
        b'"children":{"Errors":{"children":{"SM system":{"value":"Warning"}}}}}}}}}',
        b"ERROR:  nhc:  Health check failed:  check_fs_mount:  /scratch not mounted",
        b"HEALTH_CHECK_RESULT:n1:Failed:replace:memory",
        b"CRITICAL - check zombie. two",
        b'{"fail_count":1,"failed_checks":["ib"]}',
    ),
    "local-report": _target(
        report_request.decode_agent_request,
        b'{"op":"report","check":"report.nhc","code":"x","verdict":"fail"}\n',
        refuses=HpctlError,
    ),
    "progress": _target(
        progress_notes.parse_progress_note, b"hpctl1 token step=4 loss=0.5 rank=1\n"
    ),
    "job-log": _target(_log, *_files("tests/jobs/logs/samples/*")),
    "crash": _target(_crash, *_files("tests/jobs/crash_samples/*")),
    "ras-json": _target(ras_report.parse_ras_report, _ras(), refuses=HpctlError),
    "run-history": _target(
        lambda raw: list(run_records.decode_run_history_records(raw)), b'{"type":"started"}\n'
    ),
    "manifest": _target(manifest.decode_manifest, b'{"version":1,"step":4,"files":[]}'),
    "safetensors": _target(
        _on_file("a.safetensors", hf_trainer.verify_safetensors_file),
        TENSOR,
        refuses=IncompleteCheckpointError,
    ),
    "torch-zip": _target(
        _on_file("a.pt", torch_files.verify_torch_save_file),
        checkpoint_files.torch_save({"step": 4}),
        refuses=IncompleteCheckpointError,
    ),
    "torch-stream": _target(
        _on_file("a.pt", torch_files.verify_torch_save_file),
        STREAM,
        refuses=IncompleteCheckpointError,
    ),
    "flax": _target(
        _on_file("checkpoint_4", lambda place, name: flax_file.verify_msgpack_file(place / name)),
        FLAX,
        refuses=IncompleteCheckpointError,
    ),
    "checkpoint-file": _target(
        _on_file(
            "a.raw", lambda place, name: contents.inspect_checkpoint_file(place / name, deep=False)
        ),
        TENSOR,
        STREAM,
        ARRAY,
        refuses=IncompleteCheckpointError,
    ),
    "checkpoint-pattern": _target(
        _on_text(lambda text: patterns.parse_checkpoint_file_patterns([text])),
        b"ckpt_{step}_rank*.pt",
        refuses=HpctlError,
    ),
    "dcp-metadata": _target(
        _on_file(".metadata", _metadata),
        checkpoint_files.dcp_metadata([("__0_0.distcp", 0, 64)]),
        refuses=IncompleteCheckpointError,
    ),
    "ocdbt-node": _target(
        _node, ocdbt_files.LEAF, ocdbt_files.INTERIOR, refuses=IncompleteCheckpointError
    ),
    "batch-script": _target(
        _on_text(partial(options.parse_batch_script, "job.sh")), SCRIPT, refuses=HpctlError
    ),
    "log-rules": _target(_on_text(rules.parse_log_rules), RULES, refuses=HpctlError),
    "policy": _target(
        _on_text(policy_file.parse_run_policy_yaml),
        policy_file.format_example_policy_file().encode(),
        LADDER,
        refuses=HpctlError,
    ),
    "configuration": _target(
        _on_text(config.parse_config),
        b"mode: own\ncluster: {name: a}\nages: {silent_s: 9}\n",
        refuses=HpctlError,
    ),
    "cluster-file": _target(
        _on_text(spec_reading.parse_cluster_spec_yaml),
        *_files("tests/clusters/files/*.yaml", 3),
        refuses=HpctlError,
    ),
    "duration": _target(_on_text(parse_duration), b"1d12h30min"),
    "time": _target(_iso, b"2026-03-01T12:00:00.123Z", refuses=ValueError),
}


def once(target: Target, raw: bytes):
    """Feed one input. Raises what is no refusal of the target's."""
    try:
        return target.run(raw[:MOST])
    except target.refuses:
        return None
