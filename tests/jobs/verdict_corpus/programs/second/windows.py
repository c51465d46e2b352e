"""Cut a window out of a document that is shorter."""

DOCUMENT = list(range(512))


def run(step: int, value: object, config: dict[str, object]) -> bool:
    return DOCUMENT[len(DOCUMENT) + step] > 0
