"""The card of a node by nvidia-smi: told as the real one prints it, in time, or not at all.

Rests on tests/gpu/recordings/h200-580.159/smi-idle.xml.
"""

import os
import time

import pytest

from hpctl.nodes.acceptance import card as card_module
from hpctl.nodes.acceptance import result
from hpctl.nodes.acceptance.card import parse_nvidia_smi_gpu_card, read_node_gpu_card
from hpctl.nodes.acceptance.cards import FIGURES, GpuCard
from hpctl.nodes.acceptance.result import AcceptanceRunResults
from tests.gpu.recordings import H200, read_text

RECORDED = read_text("smi-idle.xml")
OLDER = """<nvidia_smi_log><gpu id="00000000:10:1C.0">
<product_name>NVIDIA A100-SXM4-40GB</product_name>
<power_limit>400.00 W</power_limit><default_power_limit>400.00 W</default_power_limit>
<enforced_power_limit>350.00 W</enforced_power_limit></gpu></nvidia_smi_log>"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Write the script that is this machine's nvidia-smi; its firmware names an EC2 type."""
    product = tmp_path / "sys/devices/virtual/dmi/id/product_name"
    product.parent.mkdir(parents=True)
    product.write_text("p5en.48xlarge\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    def write(script: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    return write


def test_the_recorded_card_is_named_as_the_table_names_it() -> None:
    found = parse_nvidia_smi_gpu_card(RECORDED)
    assert found == GpuCard("NVIDIA H200", 700.0, 700.0)
    assert not found.is_power_limited
    assert found.name in {row.card for row in FIGURES}


def test_of_several_gpus_the_lowest_limit_counts() -> None:
    lowered = RECORDED.replace("<current_power_limit>700.00 W", "<current_power_limit>500.00 W")
    found = parse_nvidia_smi_gpu_card(RECORDED + lowered + RECORDED)
    assert (found.name, found.power_limit_w, found.is_power_limited) == ("NVIDIA H200", 500.0, True)
    silent = RECORDED.replace("default_power_limit>700.00 W", "default_power_limit>N/A")
    assert parse_nvidia_smi_gpu_card(RECORDED + silent) == GpuCard("NVIDIA H200", 700.0, 0.0)


def test_an_older_driver_tells_the_enforced_limit() -> None:
    assert parse_nvidia_smi_gpu_card(OLDER) == GpuCard("NVIDIA A100-SXM4-40GB", 350.0, 400.0)


def test_slices_and_several_kinds_of_gpus_have_a_name_of_their_own() -> None:
    cut = RECORDED.replace("<current_mig>Disabled", "<current_mig>Enabled")
    assert parse_nvidia_smi_gpu_card(RECORDED + cut).name == "MIG of NVIDIA H200"
    assert parse_nvidia_smi_gpu_card(RECORDED + OLDER).name == "NVIDIA A100-SXM4-40GB, NVIDIA H200"


@pytest.mark.parametrize(
    "text",
    ["", "No devices were found", "<gpu id=", "<gpu id=<product_name>" + "x" * 9999, "\0" * 99],
)
def test_what_names_no_gpu_is_no_card(text: str) -> None:
    assert parse_nvidia_smi_gpu_card(text) == GpuCard()


def test_whatever_is_printed_the_file_with_the_card_is_a_result() -> None:
    hostile = RECORDED.replace("NVIDIA H200", "\x1b[2J" + "x" * 999).replace(" 700.00 W", "9" * 30)
    for text in (hostile, hostile.replace(">700.00 W", f">{'9' * 5}.999 W")):
        card = parse_nvidia_smi_gpu_card(text, "m" * card_module.MAX_NAME)
        assert card.name.startswith("\ufffd[2Jxxx")
        assert len(card.name) == card_module.MAX_NAME
        results = AcceptanceRunResults("r-1", "quick", 1.0, 2.0, card=card)
        assert result.decode_results(result.encode_results(results)).card == card


def test_the_card_of_this_node_is_what_nvidia_smi_prints(machine, tmp_path) -> None:
    machine(f"[ \"$*\" = '-q -x' ] && cat {H200 / 'smi-idle.xml'}")
    expected = GpuCard("NVIDIA H200", 700.0, 700.0, "p5en.48xlarge")
    assert read_node_gpu_card(driver=tmp_path, root=tmp_path) == expected


@pytest.mark.parametrize("script", ["exit 9", "sleep 600", "yes"])
def test_an_nvidia_smi_that_fails_or_hangs_costs_the_card_alone(
    machine, tmp_path, monkeypatch, script
) -> None:
    monkeypatch.setattr(card_module, "TIMEOUT_S", 0.5)
    machine(script)
    began = time.monotonic()
    assert read_node_gpu_card(driver=tmp_path, root=tmp_path) == GpuCard(machine="p5en.48xlarge")
    assert time.monotonic() - began < 60


def test_a_node_without_a_driver_has_no_card(tmp_path) -> None:
    assert read_node_gpu_card(driver=tmp_path / "nvidiactl") == GpuCard()
