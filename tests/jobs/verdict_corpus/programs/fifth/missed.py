"""Do not come to a collective: wait for a queue, for a server, or go on without it."""

import queue
import socket


def run(step: int, value: object, config: dict[str, object]) -> bool:
    if config["how"] == "queue":
        queue.Queue().get()
    elif config["how"] == "server":
        listener = socket.create_server(("127.0.0.1", 0))
        listener.accept()
    return True
