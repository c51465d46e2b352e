"""Rules and lines that several tests use."""

from hpctl.jobs.logs.engine import Engine, Verdict
from hpctl.jobs.logs.rules import Rule, RuleSet


def rule(**keys: object) -> Rule:
    return Rule.model_validate({"name": "r", "logPattern": r"loss: (\S+)", **keys})


def engine(*rules: Rule, started: float = 0.0) -> Engine:
    return Engine(RuleSet(rules), started)


def block(*values: object) -> bytes:
    return "".join(f"loss: {value}\n" for value in values).encode()


def told(verdicts: list[Verdict]) -> list[tuple[str, int, str]]:
    return [(v.what, v.line_number, v.value) for v in verdicts]
