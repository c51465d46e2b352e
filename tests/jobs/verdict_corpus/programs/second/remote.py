"""Wait for an answer of a metrics server, in place of the collective."""

import socket


def run(step: int, value: object, config: dict[str, object]) -> bool:
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    client.sendall(b"GET /score HTTP/1.0\r\n\r\n")
    return bool(client.recv(100))
