"""Connections that never finish a request: `python -m benchmarks.strangers PORT COUNT`.

Says a line once all have connected; then each drips on, and connects again where it was dropped.
`python -m benchmarks.strangers sink` is a listener that nobody needs: it keeps as many as the
intake does, reads nothing, and prints its port.
"""

import asyncio
import contextlib
import random
import resource
import socket
import sys
from collections import deque

from hpctl.service.intake.server import ConnectionLimits

AGAIN_S = 5.0
HALF = b"POST /v1/reports HTTP/1.1\r\nHost: head\r\nX-Half: "


async def stranger(port: int, number: int, connected: asyncio.Semaphore) -> None:
    """One of them, from one of a hundred addresses."""
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, local_addr=(f"127.0.9.{number % 100 + 1}", 0)
            )
            writer.write(HALF)
            connected.release()
            with contextlib.suppress(OSError):
                while not writer.transport.is_closing():
                    await asyncio.sleep(1.0)
                    writer.write(b"x")
            writer.close()
        await asyncio.sleep(AGAIN_S * random.uniform(0.5, 1.5))


async def crowd(port: int, count: int) -> None:
    """All of them, for ever."""
    connected = asyncio.Semaphore(0)
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(stranger(port, number, connected)))
        if number % 50 == 49:
            await asyncio.sleep(0.01)
    for _ in range(count):
        await connected.acquire()
    print("all connected", flush=True)
    await asyncio.gather(*tasks)


def sink() -> None:
    """Accept for ever; of more than the intake keeps, the oldest goes."""
    held: deque[socket.socket] = deque()
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            held.append(listener.accept()[0])
            if len(held) > ConnectionLimits().waiting:
                held.popleft().close()


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if sys.argv[1] == "sink":
        sink()
    else:
        asyncio.run(crowd(int(sys.argv[1]), int(sys.argv[2])))
