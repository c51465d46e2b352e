"""Tests on several nodes at once, one task a node, by srun: in a job, or as jobs of their own."""

import os
import sys
from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from hpctl.acceptance.result import Result, TestLine, one_line
from hpctl.core.compat import SAFE_PATH
from hpctl.core.hostlist import fold
from hpctl.core.model import NodeName
from hpctl.slurm.run import Runner

ANSWER_S = 30.0
"""How much longer than the tests their step may take."""
_PASSED_ON = ("HPCTL_", "PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_line = msgspec.json.Decoder(TestLine)

Found = Mapping[NodeName, tuple[Result, ...]]


def on_nodes(
    runner: Runner,
    nodes: Collection[NodeName],
    level: str,
    limit_s: float,
    options: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
) -> tuple[Found, str]:
    """What each node said of itself, nothing where it said nothing; and srun's own last words.

    `options` are further ones of srun. Never raises; it takes `limit_s` and ANSWER_S at most.
    """
    command = [sys.executable, *SAFE_PATH, "hpctl.acceptance.run", "--level", level]
    count = str(len(nodes))
    ran = runner.run(
        "srun",
        *("--nodes", count, "--ntasks", count, "--ntasks-per-node=1", "--nodelist", fold(nodes)),
        *("--kill-on-bad-exit=0", "--quiet", *options, *command),
        timeout=limit_s + ANSWER_S,
        environ=environ,
    )
    found: dict[NodeName, tuple[Result, ...]] = {}
    for text in ran.out[: 16 << 20].decode("utf-8", "replace").splitlines():
        if not text.startswith('{"host"'):
            continue
        try:
            line = _line.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            continue
        name = NodeName(line.host)
        if name in nodes:
            told = replace(line.result, reason=one_line(line.result.reason))
            found[name] = (*found.get(name, ()), told)
    return found, "" if ran.ok else one_line(ran.message)


def passed_on(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables that tests on another node need."""
    return {name: value for name, value in environ.items() if name.startswith(_PASSED_ON)}


def worst(results: Sequence[Result]) -> str:
    """Why a node is bad by its results: the failed tests in one line; empty where none failed."""
    failed = [f"{r.test}: {r.reason or 'failed'}" for r in results if r.status == "Failed"]
    return one_line("; ".join(failed))


def shown(nodes: Mapping[NodeName, str]) -> str:
    """Bad nodes with their reasons, the first four."""
    named = [f"{node} ({why})" for node, why in list(nodes.items())[:4]]
    more = [f"{len(nodes) - 4} more"] if len(nodes) > 4 else []
    return ", ".join((*named, *more))
