"""Look up a learning rate that the table does not have."""

RATES = {"warmup": 0.1, "constant": 0.01}


def run(step: int, value: object, config: dict[str, object]) -> bool:
    return bool(RATES["cosine" if step else "warmup"])
