"""What an attacker without root runs: nothing but Python's standard library and `munge`.

The source is given to `python3 -I -` on stdin, with a call of `main` at its end, so that it runs as
a user who may read none of our files; it prints what came of it as JSON.
"""

import contextlib
import hashlib
import json
import os
import resource
import select
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path


def credential(munge_socket, body):
    """A credential that proves who we are and what we send, as anybody on the host may have it."""
    payload = "hpctl1:" + hashlib.sha256(body).hexdigest()
    args = ["munge", "--socket", munge_socket, "--string", payload]
    made = subprocess.run(args, capture_output=True, text=True, check=True)
    return "MUNGE " + made.stdout.strip()


def send(port, path, body, headers=(), method="POST", timeout=15):
    """One request: [status, the answer's first characters]; status 0 where there was no answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return [answer.status, answer.read(4000).decode("utf-8", "replace")]
    except OSError as error:
        return [0, f"{type(error).__name__}: {error}"]
    finally:
        connection.close()


def posts(port, path, bodies, munge_socket="", headers=()):
    """Each body with a credential of its own (none without a socket)."""
    found = []
    for text in bodies:
        body = bytes.fromhex(text)
        proof = {"Authorization": credential(munge_socket, body)} if munge_socket else {}
        found.append(send(port, path, body, {**proof, **dict(headers)}))
    return found


def flood(port, path, body, munge_socket, times, width=8):
    """The same body, proved anew each time: how often each status came, and in how many seconds."""
    raw, begun, counts = bytes.fromhex(body), time.monotonic(), {}

    def once(_):
        proof = {"Authorization": credential(munge_socket, raw)}
        return send(port, path, raw, proof)[0]

    with ThreadPoolExecutor(width) as pool:
        for status in pool.map(once, range(times)):
            counts[status] = counts.get(status, 0) + 1
    return {"counts": counts, "seconds": time.monotonic() - begun}


def crowd_world(path, seconds, width):
    """Connections to a Unix socket for a while, `width` at a time: silent, with garbage, with a
    request of a gigabyte, and with one whose answer is not read. How many were made, and what was
    answered to garbage at most, in bytes."""
    words = [b"", os.urandom(512), b"\x3f\xff\xff\xff" + b"x" * 900]
    asked = b"\x82\xa8protocol\x01\xa5parts\x82\xa5state\x00\xa5slurm\x00"
    words.append(len(asked).to_bytes(4, "big") + asked)
    limit, lines, made, most = time.monotonic() + seconds, [], 0, 0
    print("ready", flush=True)
    while time.monotonic() < limit:
        line = socket.socket(socket.AF_UNIX)
        line.setblocking(False)
        try:
            line.connect(path)
            made += 1
            lines.append(line)
            line.send(words[made % len(words)])
            if made % len(words) in (1, 2):
                most = max(most, len(line.recv(4096)))
        except OSError:  # full, or dropped already
            lines.append(line)
            time.sleep(0.001)
        while len(lines) > width:
            lines.pop(0).close()
    return [made, most]


def endless(port, path, announced, most):
    """A body that does not end: how many bytes were taken, and the status that came."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n"
    chunk = b"A" * 65536
    if announced:
        head += f"Content-Length: {announced}\r\n\r\n"
    else:
        head += "Transfer-Encoding: chunked\r\n\r\n"
        chunk = b"10000\r\n" + chunk + b"\r\n"
    sent, text = 0, b""
    with socket.create_connection(("127.0.0.1", port), timeout=15) as connection:
        connection.sendall(head.encode())
        try:
            while sent < most:
                connection.sendall(chunk)
                sent += len(chunk)
        except OSError:
            pass
        with contextlib.suppress(OSError):
            text = connection.recv(4096)
    args = text.split(maxsplit=2)
    return {"sent": sent, "status": int(args[1]) if len(args) > 1 else 0}


def crowd(port, count, begin, drip, seconds):
    """Connections that never finish a request: how many are still open at the end.

    `begin` is what each says, `drip` what it adds each second. Says `ready` once all are there.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    mine = []
    for number in range(min(count, most - 50)):
        try:
            one = socket.create_connection(("127.0.0.1", port), timeout=2)
            one.setblocking(False)
            one.send(begin.encode())
            mine.append(one)
        except OSError:
            time.sleep(0.005)
        if number % 100 == 99:
            mine = [one for one in mine if _open(one)]
    print("ready", flush=True)
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        time.sleep(0.5)
        for one in mine:
            with contextlib.suppress(OSError):
                one.send(drip.encode())
    return {"made": len(mine), "open": sum(_open(one) for one in mine)}


def _open(connection):
    try:
        return connection.recv(4096) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def hijack(port, seconds):
    """Sit on a port and answer everything with an ack: how many requests came."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        return {"bound": False, "why": str(error), "answered": 0}
    listener.listen(64)
    listener.settimeout(0.2)
    print("ready", flush=True)
    answered, limit, answer = 0, time.monotonic() + seconds, b'{"ack":9007199254740991}'
    while time.monotonic() < limit:
        try:
            client, _ = listener.accept()
        except OSError:
            continue
        with client:
            client.settimeout(1)
            try:
                client.recv(65536)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer))
                client.sendall(answer)
                answered += 1
            except OSError:
                pass
    return {"bound": True, "answered": answered}


def writable(root):
    """What of a directory we may write to or connect to."""
    found = []
    for directory, names, files in os.walk(root):
        found += [os.path.join(directory, n) for n in (*names, *files)]
    return [path for path in found if os.access(path, os.W_OK, follow_symlinks=False)]


def shots(address, words):
    """Datagrams to a progress address: what came of each."""
    kind, _, where = address.partition(":")
    family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
    found = []
    with socket.socket(family, socket.SOCK_DGRAM) as gun:
        target = where
        if kind != "unix":
            host, port = where.partition(",")[0].rsplit(":", 1)
            target = (host, int(port))
        for text in words:
            try:
                gun.sendto(bytes.fromhex(text), target)
                found.append("sent")
            except OSError as error:
                found.append(type(error).__name__)
    return found


def seize_ports(first, last, seconds, words, until=""):
    """Listen on 15 of each 16 ports, and relay to the sixteenth, where the part of a job listens
    that found the others taken. How many ports and connections, and which words passed, until a
    file is there."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    crowd, listeners, relayed, seen = select.epoll(), {}, [0], set()

    def copy(source, sink):
        kept = b""
        with contextlib.suppress(OSError):
            while content := source.recv(65536):
                kept = kept[-100:] + content
                seen.update(word for word in words if word.encode() in kept)
                sink.sendall(content)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def relay(here):
        address, port = here.getsockname()
        try:
            there = socket.create_connection((address, port - port % 16 + 15), timeout=20)
        except OSError:
            here.close()
            return
        with here, there:
            there.settimeout(None)
            relayed[0] += 1
            back = threading.Thread(target=copy, args=(there, here), daemon=True)
            back.start()
            copy(here, there)
            back.join()

    for port in range(first, last):
        listener = socket.socket()
        try:
            if port % 16 != 15:
                listener.bind(("0.0.0.0", port))
                listener.listen(64)
                listeners[listener.fileno()] = listener
                crowd.register(listener, select.EPOLLIN)
        except OSError:
            listener.close()
    print("ready", flush=True)
    limit = time.monotonic() + seconds
    while time.monotonic() < limit and not os.path.exists(until):
        for descriptor, _ in crowd.poll(0.5):
            here, _ = listeners[descriptor].accept()
            threading.Thread(target=relay, args=(here,), daemon=True).start()
    return {"ports": len(listeners), "relayed": relayed[0], "words": sorted(seen)}


def storm(places, seconds, width):
    """Connect to ports again as soon as a connection is closed, and say nothing; how often."""
    limit, made, held, crowd = time.monotonic() + seconds, 0, {}, select.epoll()

    def connect():
        line = socket.socket()
        line.setblocking(False)
        line.connect_ex(tuple(places[made % len(places)]))
        held[line.fileno()] = line
        crowd.register(line, select.EPOLLIN | select.EPOLLRDHUP)

    print("ready", flush=True)
    while time.monotonic() < limit:
        while len(held) < width:
            connect()
            made += 1
        for descriptor, _ in crowd.poll(0.1):
            held.pop(descriptor).close()
    return made


def answer_as_ras(document, seconds):
    """Speak as NCCL's RAS service on a free port of loopback, and answer STATUS with `document`.
    Prints the port; how many were answered."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.2)
    print(listener.getsockname()[1], flush=True)
    said = {"CLIENT": b"SERVER PROTOCOL 2\n", "TIMEOUT": b"OK\n", "SET": b"OK\n"}
    said["VERBOSE"] = document.encode()
    answered, limit = 0, time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            client, _ = listener.accept()
        except OSError:
            continue
        client.settimeout(1)
        with client, client.makefile("rb") as lines, contextlib.suppress(OSError):
            for line in lines:
                command = line.decode().split()[0]
                client.sendall(said[command])
                if command == "VERBOSE":
                    answered += 1
                    break
    return answered


def flood_datagrams(address, seconds):
    """The shortest datagrams to a UDP address, as fast as this process can: how many went out."""
    host, port = address.partition(":")[2].partition(",")[0].rsplit(":", 1)
    sent = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gun:
        gun.setblocking(False)
        gun.connect((host, int(port)))
        print("ready", flush=True)
        limit = time.monotonic() + seconds
        while time.monotonic() < limit:
            with contextlib.suppress(OSError):
                gun.send(b"x")
                sent += 1
    return sent


def write(path, text):
    """Try to make a file."""
    try:
        Path(path).write_text(text)
    except OSError as error:
        return type(error).__name__
    return "written"


def main(text):
    """Do what the JSON object says, and print what came of it."""
    asked = json.loads(text)
    done = globals()[asked.pop("do")](**asked)
    print(json.dumps({"uid": os.geteuid(), "done": done}))
