"""Rules and lines that several tests use."""

from hpctl.jobs.logs.engine import Engine, RuleVerdict
from hpctl.jobs.logs.rules import LogRule, RuleSet


def rule(**keys: object) -> LogRule:
    return LogRule.model_validate({"name": "r", "logPattern": r"loss: (\S+)", **keys})


def engine(*rules: LogRule, started: float = 0.0) -> Engine:
    return Engine(RuleSet(rules), started)


def block(*values: object) -> bytes:
    return "".join(f"loss: {value}\n" for value in values).encode()


def told(verdicts: list[RuleVerdict]) -> list[tuple[str, int, str]]:
    return [(v.what, v.line_number, v.value) for v in verdicts]
