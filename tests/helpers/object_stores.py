"""A server of object stores on this machine, moto, with a proxy before it that breaks answers, and caches for it."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

import chordcache as cc

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body"""

CONFIG = "frames: {short_side: 64}\nfeatures: {flow: {method: dis}, mel: {n_mels: 20}}\n"
NUM_VIDEOS = 4

VARIABLES = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


class Proxy:
    """A server that passes requests on to moto, and lets a function change the answers."""

    def __init__(self, port: int) -> None:
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and range of each request"""
        self.fault: Callable[[Any, str, str, Answer], Answer | None] = lambda _handler, _method, _path, answer: answer
        """Function of the handler, method, path and answer. Returns None if it has answered"""
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *arguments: Any) -> None:
                pass

            def _pass_on(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                proxy.requests.append((self.command, self.path, self.headers.get("range")))
                connection = http.client.HTTPConnection("127.0.0.1", port)
                connection.request(self.command, self.path, body, dict(self.headers))
                response = connection.getresponse()
                headers = {name: value for name, value in response.getheaders() if name.lower() != "transfer-encoding"}
                answer = proxy.fault(self, self.command, self.path, (response.status, headers, response.read()))
                connection.close()
                if answer is not None:
                    self.send(*answer)

            def send(self, status: int, headers: dict[str, str], body: bytes, num_bytes: int | None = None) -> None:
                """Send an answer, or the first bytes of its body."""
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() != "content-length" or self.command == "HEAD":
                        self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[:num_bytes])
                self.wfile.flush()

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass_on

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def gets(self, part: str) -> list[tuple[str, str, str | None]]:
        """Return the requests that got objects whose names contain a text."""
        return [request for request in self.requests if request[0] == "GET" and part in request[1]]

    def reset(self) -> None:
        """Forget the requests, and pass answers on as they are."""
        self.requests.clear()
        self.fault = lambda _handler, _method, _path, answer: answer

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def moto() -> Iterator[int]:
    """Run a server of object stores, and yield its port. It holds one store, named "data"."""
    code = (
        "from moto.server import ThreadedMotoServer; import sys, logging\n"
        "logging.getLogger('werkzeug').disabled = True\n"
        "server = ThreadedMotoServer(ip_address='127.0.0.1', port=0, verbose=False); server.start()\n"
        "print(server.get_host_and_port()[1], flush=True); sys.stdin.read()"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        request = urllib.request.Request(f"http://127.0.0.1:{port}/data", method="PUT")
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
        yield port
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


def fail_first(count: int, status: int = 503) -> Callable[..., Answer | None]:
    """Return a fault: the first answers are errors of the server."""
    left = [count]

    def fault(_handler: Any, method: str, path: str, answer: Answer) -> Answer:
        if left[0]:
            left[0] -= 1
            return status, {}, b"<Error><Code>SlowDown</Code></Error>"
        return answer

    return fault


def of_objects(
    part: str, change: Callable[[Any, Answer], Answer | None], *, times: int = 1 << 30
) -> Callable[..., Any]:
    """Return a fault of the answers to GET for objects whose names contain a text, a number of times."""
    left = [times]

    def fault(handler: Any, method: str, path: str, answer: Answer) -> Answer | None:
        if method != "GET" or part not in path or "list-type" in path or not left[0]:
            return answer
        left[0] -= 1
        return change(handler, answer)

    return fault


def cut(handler: Any, answer: Answer) -> None:
    """End the connection in the middle of the body."""
    status, headers, body = answer
    handler.send(status, headers, body, len(body) // 2)
    handler.close_connection = True


def stall(handler: Any, answer: Answer) -> None:
    """Send half of the body, and then nothing."""
    status, headers, body = answer
    handler.send(status, headers, body, len(body) // 2)
    time.sleep(60)


def drip(handler: Any, answer: Answer) -> None:
    """Send the body slowly."""
    status, headers, body = answer
    handler.send(status, headers, body, 0)
    for start in range(0, len(body), 4096):
        time.sleep(0.002)
        handler.wfile.write(body[start : start + 4096])


def flip(_handler: Any, answer: Answer) -> Answer:
    """Change a bit in the middle of the body."""
    status, headers, body = answer
    changed = bytearray(body)
    changed[len(changed) // 2] ^= 1
    return status, headers, bytes(changed)


def contents(cache: cc.Cache) -> dict[str, np.ndarray]:
    arrays = {}
    for video in cache:
        for info in video.sidecar.features:
            for array in info.num_rows:
                arrays[f"{video.key} {array} {info.tier}"] = cache.read(video, array, tier=info.tier)
        arrays[f"{video.key} pts"] = video.pts_seconds
    return arrays


def assert_equal(one: cc.Cache, other: cc.Cache) -> None:
    expected, got = contents(one), contents(other)
    assert list(expected) == list(got)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)
