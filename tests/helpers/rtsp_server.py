"""An RTSP server on loopback, for one client and one video track: the dialogue is ours, the RTP packets are ffmpeg's.

ffmpeg itself cannot serve: its ``-rtsp_flags listen`` only waits for a client that sends.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path


def _free_ports() -> tuple[socket.socket, socket.socket]:
    """Two UDP sockets on neighboring ports, the first one even: RTP and RTCP."""
    while True:
        rtp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        rtp.bind(("127.0.0.1", 0))
        port = rtp.getsockname()[1]
        rtcp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        with contextlib.suppress(OSError):
            if port % 2 == 0:
                rtcp.bind(("127.0.0.1", port + 1))
                rtp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
                return rtp, rtcp
        rtp.close()
        rtcp.close()


class RtspServer:
    """Serves a file, in real time and over the connection itself, to the client that connects."""

    def __init__(self, video: Path) -> None:
        self._video = video
        self._rtp, self._rtcp = _free_ports()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sdp = self._describe()
        self._ffmpeg: subprocess.Popen[bytes] | None = None
        self.url = f"rtsp://127.0.0.1:{self._listener.getsockname()[1]}/live"
        threading.Thread(target=self._serve, daemon=True).start()

    def _command(self, *options: str) -> list[str]:
        target = f"rtp://127.0.0.1:{self._rtp.getsockname()[1]}"
        return ["ffmpeg", "-v", "error", *options, "-i", str(self._video), "-an", "-c", "copy", "-f", "rtp", target]

    def _describe(self) -> str:
        """Return ffmpeg's description of the packets that it is going to send."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM):
            done = subprocess.run(self._command("-t", "0.01"), capture_output=True, text=True, check=True)
        sdp = done.stdout.partition("SDP:\n")[2]
        return re.sub(r"m=video \d+", "m=video 0", sdp).strip().replace("\n", "\r\n") + "\r\na=control:track\r\n"

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            with connection, connection.makefile("rb") as lines:
                while request := lines.readline().decode():
                    headers = {}
                    while (line := lines.readline().decode().strip()) != "":
                        name, _, value = line.partition(":")
                        headers[name.lower()] = value.strip()
                    self._answer(connection, request.split()[0], headers)

    def _answer(self, connection: socket.socket, method: str, headers: dict[str, str]) -> None:
        more, body = "", ""
        if method == "OPTIONS":
            more = "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN\r\n"
        elif method == "DESCRIBE":
            body = self._sdp
            more = f"Content-Type: application/sdp\r\nContent-Length: {len(body)}\r\n"
        elif method == "SETUP":
            more = "Transport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n"
        answer = f"RTSP/1.0 200 OK\r\nCSeq: {headers['cseq']}\r\nSession: 1\r\n{more}\r\n{body}"
        connection.sendall(answer.encode())
        if method == "PLAY":
            threading.Thread(target=self._relay, args=(connection,), daemon=True).start()

    def _relay(self, connection: socket.socket) -> None:
        """Pass ffmpeg's packets on until it has sent the last one, then hang up."""
        while self._drained():
            pass
        self._ffmpeg = subprocess.Popen(self._command("-re"), stdout=subprocess.DEVNULL)
        self._rtp.settimeout(0.5)
        with contextlib.suppress(OSError):
            while True:
                try:
                    packet = self._rtp.recv(1 << 16)
                except TimeoutError:
                    if self._ffmpeg.poll() is None:
                        continue
                    connection.shutdown(socket.SHUT_RDWR)
                    return
                connection.sendall(struct.pack(">cBH", b"$", 0, len(packet)) + packet)

    def _drained(self) -> bool:
        """Return whether a packet of the description was still waiting."""
        self._rtp.setblocking(False)
        try:
            self._rtp.recv(1 << 16)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        if self._ffmpeg is not None:
            self._ffmpeg.kill()
            self._ffmpeg.wait()
        for endpoint in (self._listener, self._rtp, self._rtcp):
            endpoint.close()


@contextlib.contextmanager
def serving(video: Path) -> Iterator[str]:
    """Serve a file, and give its address."""
    server = RtspServer(video)
    try:
        yield server.url
    finally:
        server.close()
