"""Identities of a GPU machine do not come back with the recordings."""

import pickle

import pytest

from tests.gpu.redact import Redactor

pytestmark = pytest.mark.integration

UUID = "GPU-4f0a1c2e-1234-5678-9abc-def012345678"
SERIAL = "1652623001234"


def make_redactor() -> Redactor:
    redactor = Redactor({"gpu-box-17": "vm", "/tmp/hp-gpu-x": "/tmp/proof"})
    redactor.learn([f"<serial>{SERIAL}</serial><pdi>0xb37b4f9f325742fb</pdi>", f"is {UUID}"])
    return redactor


def test_an_identity_becomes_the_same_other_one_of_its_form_everywhere() -> None:
    redactor = make_redactor()
    text = redactor.text(f"{UUID} {SERIAL} 0xb37b4f9f325742fb on gpu-box-17, again {UUID}")
    assert text == (
        "GPU-00000000-1111-2222-3333-444444444444 1650000000000 0xaaaaaaaa00000000 on vm, "
        "again GPU-00000000-1111-2222-3333-444444444444"
    )


def test_a_serial_number_of_the_kernels_log_is_known_in_other_texts() -> None:
    redactor = Redactor()
    redactor.learn([f"NVRM: GPU Board Serial Number: {SERIAL}"])
    assert redactor.text(f"serial={SERIAL}") == "serial=1650000000000"


def test_two_gpus_stay_two() -> None:
    redactor = make_redactor()
    redactor.learn(["GPU-aaaaaaaa-1234-5678-9abc-def012345678"])
    other = redactor.text("GPU-aaaaaaaa-1234-5678-9abc-def012345678")
    assert other == "GPU-00000001-1111-2222-3333-444444444444"


def test_values_and_pickles_are_redacted_and_stay_what_they_are() -> None:
    redactor = make_redactor()
    value = {"path": ["/tmp/hp-gpu-x/a", 1, None], UUID: (True, UUID)}
    wanted = {
        "path": ["/tmp/proof/a", 1, None],
        "GPU-00000000-1111-2222-3333-444444444444": (
            True,
            "GPU-00000000-1111-2222-3333-444444444444",
        ),
    }
    assert redactor.value(value) == wanted
    assert pickle.loads(redactor.file("trace.pickle", pickle.dumps(value))) == wanted
    assert redactor.file("x.bin", b"\xff\xfe " + UUID.encode()).startswith(b"\xff\xfe GPU-00000000")


def test_stand_ins_of_zeros_stay() -> None:
    redactor = Redactor()
    text = "GPU-00000000-0000-0000-0000-000000000000"
    redactor.learn([text])
    assert redactor.text(text) == text
