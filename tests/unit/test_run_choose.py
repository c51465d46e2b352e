"""Which nodes a step gets."""

from __future__ import annotations

from hpctl.core.model import NodeName, SlurmNode
from hpctl.jobs.run.choose import choose, fitness

A, B, C, D = (NodeName(f"n{number}") for number in range(1, 5))


def node(name: NodeName, state: str = "ALLOCATED", *flags: str, reason: str = "") -> SlurmNode:
    return SlurmNode(name, state, frozenset(flags), reason)


def test_each_way_of_being_unfit() -> None:
    states = {
        A: node(A, "DOWN", "DRAIN", reason="hpctl:r1 xid 79"),
        B: node(B, "ALLOCATED", "NOT_RESPONDING"),
        C: node(C, "ALLOCATED", "DRAIN", reason="hpctl:r2 ecc"),
    }
    fit = fitness((A, B, C, D), states, {})
    assert fit.healthy == ()
    assert set(fit.unfit) == {A, B, C, D}
    assert "hpctl:r1" in fit.unfit[A]


def test_an_operators_drain_lets_the_job_finish_on_the_node() -> None:
    states = {A: node(A, "ALLOCATED", "DRAIN", reason="maintenance on Friday"), B: node(B)}
    assert fitness((A, B), states, {}).healthy == (A, B)


def test_a_suspect_is_out_whatever_slurmctld_says() -> None:
    fit = fitness((A, B), {A: node(A), B: node(B)}, {A: "silent"})
    assert fit.healthy == (B,)
    assert fit.unfit == {A: "silent"}


def test_survivors_come_before_the_spare_and_the_spare_before_offenders() -> None:
    assert choose((A, B, C), 2, before=(B, D)) == (A, B)
    assert choose((A, B, C), 2, before=(B, C)) == (B, C)
    assert choose((A, B, C), 2, before=(A, B), avoid={A}) == (B, C)
    assert choose((A, B, C), 3, avoid={A}) == (A, B, C)


def test_excluded_nodes_are_never_taken() -> None:
    assert choose((A, B, C), 3, exclude={B}) == (A, C)
