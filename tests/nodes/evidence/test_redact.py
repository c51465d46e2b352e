"""What is removed from text that leaves a node, what is not, and what a made-up line costs."""

import time

import pytest

from hpctl.nodes.evidence.redact import KEY_LINES, MOST_LINE, REMOVED, redact_line, redact_stream

KEY_ID = "AKIA" + "IOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI" + "/K7MDENG/bPxRfiCYEXAMPLEKEY"
BEGIN = "BEGIN"

PLANTED = [
    (f"export AWS_SECRET_ACCESS_KEY={SECRET}", SECRET),
    (f"export AWS_ACCESS_KEY_ID={KEY_ID}", KEY_ID),
    (f"app[12]: using {KEY_ID} and {SECRET}.", SECRET),
    (f"app[12]: using {KEY_ID} and {SECRET}.", KEY_ID),
    (f"k={SECRET} n=1", SECRET),
    (f"'{SECRET}'", SECRET),
    ("train.py --token hf_AbCdEfGhIjKlMnOpQrSt --gpus 8", "hf_AbCdEf"),
    ("train.py --wandb-api-key=0123abcd --gpus 8", "0123abcd"),
    ("mount -o username=a,password=hunter2xyz //server/share", "hunter2xyz"),
    ("password is hunter2xyz", "hunter2xyz"),
    ("PASSWORD : 'two words'", "two words"),
    ('{"db_password": "two words", "x": 1}', "two words"),
    ("MY_OWN_VARIABLE=value123", "value123"),
    ("https://ann:hunter2xyz@example.com/path", "hunter2xyz"),
    ("curl -H 'Authorization: Bearer abc.def-ghi'", "abc.def-ghi"),
    ("x-amz-security-token: IQoJb3JpZ2luX2VjE", "IQoJb3JpZ2luX2VjE"),
    ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abc", "eyJzdWIi"),
    ("ghp_0123456789abcdefghij0123456789abcdef", "ghp_0123"),
    ("mail ann.b@example.com now", "ann.b@example.com"),
    ("session " + "A1b2" * 60, "A1b2A1b2A1b2"),
]

KEPT = [
    "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus.",
    "0000:00:1e.0 LnkSta: Speed 16GT/s, Width x16",
    "Vector table: BAR=0 offset=00000000",
    "sys/class/infiniband/efa0/ports/1/hw_counters/rx_drops: 12",
    "GPU-5f0c1d2e-1111-2222-3333-444455556666",
    "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.580.95.05",
]


@pytest.mark.parametrize(("line", "secret"), PLANTED)
def test_a_secret_in_a_line_is_removed(line, secret):
    assert secret in line
    assert secret not in redact_line(line)
    assert REMOVED in redact_line(line)


@pytest.mark.parametrize("line", KEPT)
def test_a_line_without_secrets_stays_as_it_is(line):
    assert redact_line(line) == line


def read(*chunks: bytes) -> list[str]:
    return b"".join(redact_stream(chunks)).decode().splitlines()


def test_a_secret_is_removed_however_the_stream_is_cut():
    text = f"one\ntoken={SECRET}\ntwo {KEY_ID}\n".encode()
    for cut in range(len(text)):
        lines = read(text[:cut], text[cut:])
        assert lines == ["one", f"token={REMOVED}", f"two {REMOVED}"]


def test_a_private_key_is_removed_to_its_end_and_what_follows_stays():
    body = [f"MIIEpAIBAAKCAQEA{n}" for n in range(30)]
    key = [f"-----{BEGIN} RSA PRIVATE KEY-----", *body, "-----END RSA PRIVATE KEY-----"]
    lines = read("\n".join(["before", *key, "after"]).encode())
    assert [line for line in lines if line != REMOVED] == ["before", "after"]


def test_a_key_without_an_end_hides_no_more_than_a_key_has_lines():
    text = f"-----{BEGIN} PRIVATE KEY-----\n" + "line\n" * (KEY_LINES + 10)
    assert read(text.encode()).count("line") == 11


def test_a_line_without_an_end_is_cut_at_a_blank_and_no_secret_with_it():
    start = "word " * (MOST_LINE // 5 - 3)
    lines = read((start + f"{SECRET}").encode() * 3)
    assert len(lines) == 1
    assert len(lines[0]) <= MOST_LINE
    assert SECRET[:8] not in lines[0]


@pytest.mark.parametrize(
    "unit",
    ["a", "A_", "password ", "eyJa", "pass", "pass=", "/+A", "a.b@", "://x", '"', "a@b.", "="],
)
def test_a_line_that_was_made_to_be_slow_costs_little(unit):
    line = (unit * MOST_LINE)[:MOST_LINE]
    begun = time.process_time()
    redact_line(line)
    assert time.process_time() - begun < 1.0
