"""`hpctl agent triage` of a log that a user wrote to break who reads it."""

import json
import subprocess
import sys
from os import environ
from pathlib import Path

import pytest

from tests.adversary.bed import drop, public_directory

pytestmark = [pytest.mark.adversary, pytest.mark.integration, pytest.mark.timeout(120)]
ROOT = Path(__file__).resolve().parents[2]
MOST_MIB = 700
"""Of address space: the program itself takes about half of it."""
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
OBEYED = (b"\x1b", b"\x07", b"\x9b3", b"\0", b"\xe2\x80\xae")
"""Bytes that a terminal obeys, or that hide what follows."""
DEEP = "[" * 200_000
CODES = b"\x1b]0;owned\x07\x1b[2J\xc2\x9b31m\x9b31m\xe2\x80\xae"
HOSTILE = {
    "a line of 256 MiB": b"x",
    "a line of 256 MiB of a GPU": XID.encode(),
    "nothing but NUL": b"\0" * (8 << 20),
    "NUL in a line": XID.encode().replace(b" ", b"\0"),
    # In what the text shows (a server's name) and in what only the JSON shows (the line).
    "escape codes": b"nfs: server %b not responding, timed out\n%b%b"
    % (CODES, XID.encode(), CODES),
    "deep JSON": f'{{"MESSAGE":{DEEP}\n'.encode(),
    "deep JSON of a journal": ('{"MESSAGE":' * 100_000).encode(),
    "a record of HMA without an end": ('{"level":"error","msg":"' + "x" * (1 << 20)).encode(),
    "an export that says it is a terabyte": b"__CURSOR=\nMESSAGE\n\0\0\0\0\0\1\0\0x",
    "half a letter": b"\xf0\x9f" * 100_000,
    "a number of a million digits": f"<6>[{'9' * 1_000_000}.0] {XID}\n".encode(),
    "nothing but ends of lines": b"\n" * 50_000,
}
SIZES = {"a line of 256 MiB": 256 << 20, "a line of 256 MiB of a GPU": 256 << 20}
"""Bytes of a log that ends in a hole: NUL bytes that take no space on the disk."""
RULES = {
    "a line of 256 MiB of a GPU": (b"xid-79",),
    "escape codes": (b"kernel-nfs-not-responding", b"xid-79"),
}
"""Rules that the answer names: the hostile bytes are in lines that it shows."""


@pytest.mark.parametrize("how", [(), ("--json",)], ids=["text", "json"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_log_ends_in_an_answer(name: str, how: tuple[str, ...]) -> None:
    with public_directory() as base:
        log = base / "log"
        write = [
            "/usr/bin/python3",
            "-I",
            "-c",
            "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())",
        ]
        with log.open("wb") as file:
            subprocess.run(write, input=HOSTILE[name], stdout=file, check=True, **drop())
            file.truncate(SIZES.get(name, len(HOSTILE[name])))
        done = subprocess.run(
            ["prlimit", f"--as={MOST_MIB << 20}", sys.executable, "-m", "hpctl", "agent", "triage",
             str(log), *how],
            capture_output=True, cwd=ROOT, timeout=100, check=False,
            env=environ | {"COLUMNS": "200"},
        )  # fmt: skip
    said = done.stdout + done.stderr
    assert done.returncode in (0, 1, 3), said[-2000:]
    assert b"Traceback" not in said
    assert not [code for code in OBEYED if code in said]
    assert not [rule for rule in RULES.get(name, ()) if rule not in done.stdout]
    assert len(said) < 1 << 20
    if how:
        texts = [json.loads(line)["text"] for line in done.stdout.splitlines()]
        if name == "escape codes":  # in escapes, so that a program reads the line as it was
            assert len([text for text in texts if "\x9b31m" in text and "\u202e" in text]) == 2
