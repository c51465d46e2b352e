"""What kernel lines say beyond their number."""

import pytest

from hpctl.faults.decode import (
    decode_nvlink5_error,
    find_nvlink5_rule,
    find_xid154_rule,
    parse_gpu_component,
    parse_sxid_severity,
)

PCI = "NVRM: Xid (PCI:0000:04:00): "


@pytest.mark.parametrize(
    ("text", "fatal"),
    [
        ("20034, Fatal, Link 48 LTSSM Fault Up", True),
        ("24001, Non-fatal, Link 4 single bit", False),
        ("145, RLW_CTRL Nonfatal XC0", False),
        ("20034, Severity 1 Engine instance 60", None),
        ("20034, Severity 1; 20034, Fatal, Link 3; 11012, Non-fatal", True),
        ("nvidia-fatality", None),
    ],
)
def test_severity(text, fatal):
    assert parse_sxid_severity(text) is fatal


def test_nvlink5_fields():
    line = decode_nvlink5_error(
        PCI + "149, NETIR_LINK_DOWN Fatal XC0 i0 Link 17 (0x004505c6 0x00000001 0x0 0x0)"
    )
    assert (line.unit, line.fatal, line.link) == ("NETIR_LINK_DOWN", True, 17)
    assert (line.intr_info, line.error_status, line.reason) == (0x004505C6, 1, 0b000100)
    assert line.blame == "signal integrity at this end"


def link_down(reason: int) -> str:
    return PCI + f"149, NETIR_LINK_EVT Fatal XC0 i0 Link 01 ({reason << 20 | 0x11:#010x} 0x0)"


@pytest.mark.parametrize(
    ("code", "text", "rule"),
    [
        ("144", "144, SAW_MVB Fatal XC0 i0 Link 00 (0x00000001 0x00000010)", "xid-144-fatal"),
        ("144", "144, SAW_MVB Nonfatal XC0 i0 Link 00 (0x00000001 0x00000020)", "xid-144"),
        ("145", "145, RLW_CTRL Nonfatal XC0 i0 Link 00 (0x00000003 0x80000000)", "xid-145"),
        ("145", "145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000001)", "xid-145-app"),
        ("145", "145, RLW_REMAP Nonfatal XC0 i0 Link 00 (0x00000004 0x00000100)", "xid-145"),
        ("145", "145, RLW_REMAP Fatal XC0 i0 Link 10 (0x00000004 0x00000040)", "xid-145-fatal"),
        ("145", "145, RLW_SRC_TRACK Nonfatal XC0 i0 Link 1 (0x00000007 0x8)", "xid-145-app"),
        ("145", "145, RLW_SRC_TRACK Nonfatal XC0 i0 Link 1 (0x00000007 0x2)", "xid-145"),
        ("145", "145, RLW_RXPIPE Nonfatal XC0 i0 Link 1 (0x00000006 0x1)", "xid-145"),
        ("145", "145, RLW_RXPIPE Nonfatal XC0 i0 Link 1 (0x00000086 0x1)", "xid-145-rxpipe"),
        ("145", "145, RLW_RXPIPE Nonfatal XC0 i0 Link 1 (0x000004c2 0x1)", "xid-145-rxpipe"),
        ("146", "146, TLW_CTRL Nonfatal XC0 i0 Link 1 (0x00000009 0x1)", "xid-146"),
        ("147", "147, TREX Fatal XC0 i0 Link 1 (0x0000000e 0x1)", "xid-147-fatal"),
        ("148", "148, NVLPW Fatal XC0 i0 Link 1 (0x0000000f 0x1)", "xid-148"),
        ("149", "149, NETIR_INT Fatal XC0 i0 Link 1 (0x00000018 0x0)", "xid-149-link-down"),
        ("149", "149, NETIR_BER_EVENT Nonfatal XC0 i0 Link 1 (0x00000013 0x0)", "xid-149-ber"),
        ("149", "149, NETIR_MFDE Fatal XC0 i0 Link 1 (0x00000014 0x1)", "xid-149-fatal"),
        ("149", "149, NETIR_MFDE Nonfatal XC0 i0 Link 1 (0x00000014 0x3)", "xid-149"),
        ("149", link_down(0b000000), "xid-149-link-down"),
        ("149", link_down(0b010101), "xid-149-peer"),
        ("149", link_down(0b100101), "xid-149-peer"),
        ("149", link_down(0b100110), "xid-149-commanded"),
        ("149", link_down(0b101000), "xid-149-commanded"),
        ("149", link_down(0b101010), "xid-149-link-down"),
        ("149", "", "xid-149"),
        ("145", "garbage (0x", "xid-145"),
        ("150", "150, MSE_WATCHDOG Fatal", "xid-150"),
    ],
)
def test_nvlink5_rule(code, text, rule):
    assert find_nvlink5_rule(code, text) == rule


@pytest.mark.parametrize(
    ("phrase", "rule"),
    [
        ("None", "xid-154-none"),
        ("Drain P2P", "xid-154-drain-p2p"),
        ("Drain and Reset", "xid-154-drain-and-reset"),
        ("GPU Reset Required", "xid-154-gpu-reset-required"),
        ("PF FLR", "xid-154-gpu-reset-required"),
        ("Node Reboot Required", "xid-154-node-reboot-required"),
        ("OS Reboot", "xid-154-node-reboot-required"),
        ("Sing a Song", "xid-154"),
    ],
)
def test_driver_rule_by_phrase_alone_and_in_the_line(phrase, rule):
    assert find_xid154_rule(phrase) == rule
    line = f"GPU recovery action changed from 0x0 (None) to 0x1 ({phrase})"
    assert (find_xid154_rule("", PCI + "154, " + line), find_xid154_rule(line)) == (rule, rule)


def test_a_line_cut_short_is_not_read_as_none():
    assert find_xid154_rule("", "154, GPU recovery action changed from 0x0 (None)") == "xid-154"


def test_part():
    warp = "13, Graphics SM Warp Exception on (GPC 9, TPC 1, SM 1): Out Of Range Address"
    assert parse_gpu_component("13", warp) == ""
    assert (
        parse_gpu_component("74", "74, NVLink: fatal error detected on link 2(0x0, 0x0)")
        == "link 2"
    )
    assert (
        parse_gpu_component("74", "74")
        == parse_gpu_component("13", "")
        == parse_gpu_component("31", warp)
        == ""
    )
