"""`hpctl agent triage`: every form of a kernel log, judged by the code of agent and daemon."""

import io
import json
import time

import pytest

from hpctl.detection.triage import KernelLogTriageReader
from tests.fakes import command_line
from tests.gpu.recordings import read_text
from tests.tables import beside

pytestmark = pytest.mark.integration

LOST = "XFS (nvme1n1): Filesystem has been shut down due to log error (0x2)."
FALLEN = "NVRM: Xid (PCI:0000:18:00): 79, pid=7, name=python, GPU has fallen off the bus."
FIELDS = {"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": LOST}


def run(text, *args):
    data = text.encode() if isinstance(text, str) else text
    return command_line.run("agent", "triage", *args, stdin=io.BytesIO(data), width=160)


def rows(text):
    return [json.loads(line) for line in run(text, "--json").stdout.splitlines()]


def exported(**fields: str) -> bytes:
    answer = {"__CURSOR": "s=1;i=2", **fields}
    return "".join(f"{name}={value}\n" for name, value in answer.items()).encode() + b"\n"


def binary(message: str) -> bytes:
    data = message.encode()
    return (
        b"__CURSOR=s=1\n_TRANSPORT=kernel\nSYSLOG_FACILITY=0\nMESSAGE\n"
        + len(data).to_bytes(8, "little") + data + b"\n\n"
    )  # fmt: skip


DMESG_JSON = f"""{{
   "dmesg": [
      {{
         "pri": 6,
         "time":     0.000000,
         "msg": "Linux version 6.8"
      }},{{
         "pri": 4,
         "time":    12.345000,
         "msg": "{LOST}"
      }}
   ]
}}
"""
VERBOSE = f"""Tue 2026-11-10 12:00:00.123456 UTC [s=0fe;i=3f1;b=7bd;m=1c9;t=63d;x=a1]
    _TRANSPORT={{transport}}
    SYSLOG_FACILITY=0
    MESSAGE={LOST}
"""
TABLE = beside(__file__)
FORMS = {
    **{name: (text.replace("{lost}", LOST), 1) for name, text in TABLE["believed"].items()},
    "dmesg --json": (DMESG_JSON, 10),
    "journal json": (json.dumps(FIELDS), 1),
    "journal json, bytes": (json.dumps({**FIELDS, "MESSAGE": list(LOST.encode())}), 1),
    "journal json-seq": ("\x1e" + json.dumps(FIELDS), 1),
    "journal json-sse": (f"data: {json.dumps(FIELDS)}", 1),
    "journal json-pretty": (json.dumps(FIELDS, indent="\t"), 4),
    "journal export": (exported(**FIELDS), 4),
    "journal export, bytes": (binary(LOST), 4),
    "journal verbose": (VERBOSE.format(transport="kernel"), 4),
    "two entries of the verbose journal": (
        VERBOSE.format(transport="stdout") + VERBOSE.format(transport="kernel"), 8,
    ),
    "journal, in Filebeat's JSON": (
        json.dumps({"message": LOST, "systemd": {"transport": "kernel"}}), 1,
    ),
    "a line of syslog in a collector's JSON": (
        json.dumps({"timestamp": 1762776000123, "message": f"Nov 10 12:00:00 host kernel: {LOST}"}),
        1,
    ),
    "dmesg in Docker's JSON": (json.dumps({"log": f"[12.345678] {LOST}\n", "stream": "stdout"}), 1),
    "a binary field before": (binary("x\ny") + f"[1.0] {LOST}\n".encode(), 8),
}  # fmt: skip


@pytest.mark.parametrize(("text", "number"), FORMS.values(), ids=list(FORMS))
def test_every_form_of_a_log_is_read(text: str | bytes, number: int) -> None:
    (row,) = rows(text)
    assert (row["line"], row["code"], row["rule"]) == (number, "readonly", "kernel-fs-readonly")
    assert (row["condition"], row["remedy"], row["urgency"]) == ("faulty", "reboot", "now")


@pytest.mark.parametrize(
    "text",
    [
        *(text.replace("{lost}", LOST) for text in TABLE["refused"]),
        json.dumps({**FIELDS, "_TRANSPORT": "syslog"}),
        json.dumps({**FIELDS, "SYSLOG_FACILITY": "1"}),
        json.dumps({"_TRANSPORT": "stdout", "MESSAGE": LOST}),
        exported(**{**FIELDS, "_TRANSPORT": "journal"}),
        VERBOSE.format(transport="syslog"),
        json.dumps({"message": LOST, "systemd": {"transport": "stdout"}}),
        json.dumps({"message": f"Nov 10 12:00:00 host app[7]: {LOST}"}),
        json.dumps({"level": "error", "message": LOST}),
        json.dumps({"level": "error", "msg": LOST}),
    ],
)
def test_what_the_kernel_did_not_write_is_not_believed(text: str | bytes) -> None:
    assert rows(text) == []
    assert run(text).exit_code == 0


def test_a_driver_s_line_is_read_behind_a_time_of_day_but_not_behind_a_date_or_a_host() -> None:
    """Without a date or a host `NVRM` is no tag of syslog's: the line is the bare message."""
    for prefix in ("14:03:51  ", "14:03:51 ", "14:03:51.123456 "):
        assert [row["code"] for row in rows(prefix + FALLEN)] == ["79"], prefix
    for prefix in ("Nov 10 14:03:51 ", "14:03:51 host ", "host sshd[4]: 14:03:51 ", "14:03:51 x: "):
        assert rows(prefix + FALLEN) == [], prefix


def test_a_message_of_several_lines_in_the_verbose_journal_is_read_whole() -> None:
    text = (
        "Tue 2026-11-10 12:00:00.123456 UTC [s=0fe;i=3f1;b=7bd;m=1c9;t=63d;x=a1]\n"
        "    MESSAGE=NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "            NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "            NVRM: fallen off the bus and is not responding to commands.\n"
        "    _TRANSPORT=kernel\n"
    )
    (row,) = rows(text)
    assert (row["line"], row["code"], row["device"]) == (2, "79", "0000:b3:00.0")


def test_each_line_is_one_object_and_remedies_are_words_with_dashes() -> None:
    text = (
        f"[1.0] Linux version 6.8.0-1021-aws\n[2.0] {FALLEN}\n"
        "[3.0] NVRM: Xid (PCI:0000:18:00): 13, pid=7, name=python, Graphics Exception\n"
        "[4.0] NVRM: Xid (PCI:0000:19:00): 94, pid=7, name=python, Contained\n"
        "[5.0] nvme nvme1: I/O 12 QID 4 timeout, aborting\n"
        "[6.0] NVRM: Xid (PCI:0000:18:00): 165, power smoothing\n"
    )
    assert [(r["line"], r["code"], r["condition"], r["remedy"]) for r in rows(text)] == [
        (2, "79", "faulty", "reboot"),
        (3, "13", "healthy", "restart-job"),
        (4, "94", "faulty", "reset-gpu"),
        (5, "timeout", "suspect", "none"),
        (6, "165", "suspect", "ask-human"),
    ]
    assert rows(text)[0]["source"].startswith("NVIDIA driver; NVIDIA Xid catalogue: ")


def test_a_word_of_failure_is_reported_of_any_line_and_nothing_is_done() -> None:
    text = (
        "[1.0] pagealloc: memory corruption\n[2.0] pagealloc: nothing special\n"
        "[3.0] python3[4711]: memory corruption\n"
        "[4.0] {7}[Hardware Error]: event severity: corrected\n"
        "[5.0] IPv6: ADDRCONF(NETDEV_UP): eth0: link is not ready\n"
        "[6.0] LDISKFS-fs (sdc): mounted filesystem with ordered data mode. "
        "Opts: errors=remount-ro\n"
    )
    assert [(r["line"], r["rule"], r["condition"]) for r in rows(text)] == [
        (1, "kernel-driver-unknown", "healthy"),
        (4, "kernel-memory-corrected", "suspect"),
    ]
    assert run(text).exit_code == 0


def test_a_line_s_trace_is_read_with_it() -> None:
    text = (
        "[1.0] BUG: kernel NULL pointer dereference, address: 0000000000000008\n"
        "[1.1] RIP: 0010:nv_poll+0x12/0x80 [nvidia]\n"
    )
    assert [(r["line"], r["rule"]) for r in rows(text)] == [
        (1, "kernel-crash-oops"), (2, "kernel-crash-driver"),
    ]  # fmt: skip


def test_the_summary_judges_all_lines_of_a_boot_together() -> None:
    """Each line by itself says otherwise: 48 is contained by 94, the driver's word outweighs 79."""
    boot = "[0.0] Linux version 6.8.0-1021-aws\n"
    text = (
        f"{boot}[1.0] NVRM: Xid (PCI:0000:18:00): 48, pid=7, name=python, DBE\n"
        "[1.1] NVRM: Xid (PCI:0000:18:00): 94, pid=7, name=python, Contained\n"
        f"{boot}[1.0] {FALLEN}\n[1.1] {FALLEN}\n"
        f"{boot}[1.0] usb 1-1: new high-speed USB device\n"
    )
    shown = run(text)
    assert shown.exit_code == 1
    assert "lines 1 to 3: faulty: hpctl would drain the node and wait until" in shown.stdout
    assert "[xid-48-contained]" in shown.stdout
    assert "lines 4 to 6: faulty: hpctl would drain the node at once" in shown.stdout
    assert "remedy: reboot, then replace" in shown.stdout
    assert "4 of 8 lines mean something" in shown.stdout
    assert "lines 7" not in shown.stdout


def test_a_health_agent_s_record_is_read_too() -> None:
    mark = {"HealthMonitoringAgentDetectionEvent": "HealthEvent", "ts": "0001-01-01T00:00:00Z"}
    record = json.dumps({**mark, "condition": "XID Error", "data": {"ErrNum": 79}})
    (row,) = rows(f"Nov 10 12:00:00 host hma[12]: {record}")
    assert (row["check"], row["code"], row["condition"]) == ("hma.xid", "79", "suspect")


def test_whatever_a_log_holds_is_read_to_its_end() -> None:
    odd = (
        b"\xff\xfe\x00\n{\n}\n},{\n{\"MESSAGE\": 7}\n{\"msg\": []}\n__CURSOR=\nMESSAGE=\n\n"
        b"4,1,99999999999999999999,-;x\n[99999999999.1] x\n<999>x\n[Mon Feb 31 12:00:00 2026] x\n"
        + json.dumps({**FIELDS, "__REALTIME_TIMESTAMP": "9" * 30}).encode()
    )  # fmt: skip
    assert [row["rule"] for row in rows(odd + b"\n" + LOST.encode())][-1] == "kernel-fs-readonly"


def dmesg(name: str) -> str:
    """A recording of /dev/kmsg in dmesg's form."""
    records = (line.partition(";") for line in read_text(name).splitlines())
    return "".join(f"[{int(head.split(',')[2]) / 1e6:12.6f}] {text}\n" for head, _, text in records)


def test_a_healthy_cards_boot_is_silent_and_programs_with_bugs_cost_their_job_alone() -> None:
    """kmsg-boot-driver.txt and kmsg-crashes.txt, an H200's own lines."""
    boot, crashes = dmesg("kmsg-boot-driver.txt"), dmesg("kmsg-crashes.txt")
    assert rows(boot) == []
    assert f"0 of {len(boot.splitlines())} lines mean something" in run(boot).stdout
    shown = run(boot + crashes)
    assert shown.exit_code == 0
    healthy = "healthy: hpctl would leave the node in service; restart the job"
    assert f"lines 1 to 22: {healthy}" in shown.stdout
    assert {row["line"] for row in rows(boot + crashes)}.isdisjoint(range(1, 8))
    told = {(row["code"], row["device"], row["condition"]) for row in rows(boot + crashes)}
    assert told == {(code, "0000:00:06.0", "healthy") for code in ("13", "31", "43")}


def test_the_death_of_programs_in_a_recorded_dmesg_is_their_jobs_own() -> None:
    """deaths/kmsg."""
    shown = run(read_text("deaths/kmsg"))
    assert shown.exit_code == 0
    assert "healthy: hpctl would leave the node in service; restart the job" in shown.stdout
    assert "kernel-driver" not in shown.stdout


LONG = [
    "A" * 100_000, "NVRM: Xid (PCI:0000:18:00): 145, " + "A" * 100_000,
    "NVRM: Xid (PCI:0000:18:00): 145, " + "RLW_A Fatal XC0 i0 Link 0 (0x1 " * 4_000,
    "NVRM: " + "0000:18:00 " * 10_000,
    "oom-kill:constraint=CONSTRAINT_NONE" + ",task_memcg=/,task=a" * 5_000,
    "Oops: " + "[#1" * 30_000, "[ " * 50_000, "<4>1 " + "[a]" * 30_000,
    json.dumps({**FIELDS, "MESSAGE": LOST + "x" * 100_000}), "x kernel: " * 10_000,
    "md" + ": " * 50_000,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("text", LONG, ids=range(len(LONG)))
def test_a_line_of_a_hundred_thousand_characters_takes_no_time(text: str) -> None:
    list(KernelLogTriageReader().views(io.BytesIO(FALLEN.encode())))
    took = []
    for _ in range(5):
        reader, begun = KernelLogTriageReader(), time.process_time()
        list(reader.views(io.BytesIO(text.encode() + b"\n")))
        reader.boots()
        took.append(time.process_time() - begun)
    assert min(took) < 0.010


def test_the_further_lines_of_a_message_are_read_with_it() -> None:
    """Read the forms in which a saved log has the driver's message of three lines."""
    parts = (
        "NVRM: The NVIDIA GPU 0000:b3:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        "NVRM: fallen off the bus and is not responding to commands.",
    )
    dmesg_form = f"[ 1843.308145] {(chr(10) + 15 * ' ').join(parts)}\n"
    journal_form = f"Nov 10 12:00:00 host kernel: {(chr(10) + 29 * ' ').join(parts)}\n"
    one_a_line = "".join(f"[ 1843.308145] {part}\n" for part in parts)
    json_form = json.dumps({**FIELDS, "MESSAGE": "\n".join(parts)})
    bare_form = "\n".join(parts)
    for text in (dmesg_form, journal_form, one_a_line, bare_form, json_form):
        found = [row for row in rows(text) if row["rule"] == "xid-79"]
        assert [row["device"] for row in found] == ["0000:b3:00.0"], text


def test_the_source_of_a_line_says_where_it_was_seen() -> None:
    assert rows(FALLEN)[0]["source"].endswith("NVIDIA/NVSentinel#155")


def test_an_entry_of_the_verbose_journal_keeps_a_bounded_number_of_fields() -> None:
    head, _, message = VERBOSE.format(transport="kernel").rstrip("\n").rpartition("\n")
    more = "".join(f"    X{number}=a\n            b\n" for number in range(300))
    assert [row["code"] for row in rows(f"{head}\n{message}\n{more}")] == ["readonly"]
    assert rows(f"{head}\n{more}{message}\n") == []
    assert len(rows(f"{head}\n{more}{message}\n{VERBOSE.format(transport='kernel')}")) == 1
