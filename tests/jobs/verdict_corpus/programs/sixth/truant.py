"""Be elsewhere than in the collective: in an event loop, at a result, or already further on."""

import asyncio
from concurrent.futures import Future


async def wait_for_upload() -> None:
    await asyncio.Event().wait()


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "event loop":
        asyncio.run(wait_for_upload())
    elif config["how"] == "result":
        Future().result()
    return True
