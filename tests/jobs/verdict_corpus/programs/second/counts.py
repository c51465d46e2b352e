"""Count in C: one call of the interpreter that keeps the GIL for days."""


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "power":
        return (3 ** (10**9)) % 7 == 0
    return sum(range(10**15)) > 0
