"""A cache in an object store, read by a loader through a local folder: the time waited, and the bytes fetched.

The store is a server of files in a process of its own on this machine, with a latency before each answer. It needs
obstore. The consumer takes batches at half the rate at which the loader reads them from the local cache.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from bench_packs import many

import chordcache as cc
from chordcache.amounts import human_bytes
from chordcache.building.pack import pack

NUM_FRAMES = 16
BATCH_SIZE = 8
WARM_UP_SECONDS = 2.0


def serve(root: Path, latency_seconds: float, port: Connection, num_sent: Synchronized[int]) -> None:
    """Serve the files of a folder as S3 does, without a look at credentials, and count the bytes."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            time.sleep(latency_seconds)
            url = urlsplit(self.path)
            file = root / unquote(url.path).removeprefix("/data").strip("/")
            if "list-type" in url.query:
                self.answer_list(parse_qs(url.query).get("prefix", [""])[0])
                return
            if not file.is_file():
                self.send_response_only(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            size = file.stat().st_size
            start, stop = 0, size
            if match := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", "")):
                start, stop = int(match[1]), min(size, int(match[2]) + 1)
            self.send_response_only(206 if match else 200)
            self.send_header("ETag", '"1"')
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.send_header("Content-Length", str(stop - start))
            self.end_headers()
            if self.command == "GET":
                with file.open("rb") as content:
                    content.seek(start)
                    self.wfile.write(content.read(stop - start))
                with num_sent.get_lock():
                    num_sent.value += stop - start

        do_HEAD = do_GET

        def answer_list(self, prefix: str) -> None:
            """Send the files below a prefix that ends a folder's name."""
            entries = [
                f"<Contents><Key>{file.relative_to(root)}</Key><Size>{file.stat().st_size}</Size><ETag>1</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                for file in sorted((root / prefix).rglob("*"))
                if file.is_file()
            ]
            body = f"<ListBucketResult>{''.join(entries)}<IsTruncated>false</IsTruncated></ListBucketResult>".encode()
            self.send_response_only(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    class Server(ThreadingHTTPServer):
        request_queue_size = 1024  # Lance opens dozens of connections at once

    server = Server(("127.0.0.1", 0), Handler)
    port.send(server.server_address[1])
    server.serve_forever()


def start_server(root: Path, latency_ms: float) -> tuple[BaseProcess, Synchronized[int]]:
    """Serve a folder as s3://data to this process and its children. Return the process and the bytes that it sent."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    num_sent = context.Value("q")
    server = context.Process(target=serve, args=(root, latency_ms / 1000, theirs, num_sent), daemon=True)
    server.start()
    os.environ |= {"AWS_SKIP_SIGNATURE": "true", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{ours.recv()}"}
    os.environ["NO_PROXY"] = "127.0.0.1"
    return server, num_sent


def loader_of(cache: cc.Cache | Path) -> cc.ClipLoader:
    sampler = cc.RandomClipSampler(num_frames=NUM_FRAMES, stride=1)
    return cc.ClipLoader(cc.ChordVideoDataset(cache, clip_sampler=sampler), batch_size=BATCH_SIZE, num_threads=2)


def waits(loader: cc.ClipLoader, step_seconds: float) -> Iterator[tuple[float, float]]:
    """Yield when each batch came, and the time for which it was waited, of a consumer with a step of this length."""
    started, batches = time.perf_counter(), iter(loader)
    while True:
        before = time.perf_counter()
        if next(batches, None) is None:
            return
        after = time.perf_counter()
        yield after - started, after - before
        time.sleep(step_seconds)


def clip_bytes(cache: cc.Cache) -> int:
    """Return the mean size of the JPEGs of a clip."""
    video = cache[0]
    jpegs = cache.read_encoded(video, range(video.num_frames))
    return sum(map(len, jpegs)) * NUM_FRAMES // video.num_frames


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", type=Path, help="folder of fetch_clips.py")
    parser.add_argument("--videos", type=int, default=400)
    parser.add_argument("--short-side", type=int, default=224)
    parser.add_argument("--latency-ms", type=float, default=50)
    parser.add_argument("--packed", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(f"frames: {{short_side: {arguments.short_side}, fps: 5}}\n")
        index = cc.scan([arguments.clips / "street"], output=folder / "index.jsonl")
        cc.build(index, folder / "cache", config=folder / "config.yaml", jobs=1)
        num_bytes = many(folder / "cache", arguments.videos)
        if arguments.packed:
            pack(folder / "cache", folder / "packed", move=True)
            (folder / "packed").rename(folder / "cache")
        server, num_sent = start_server(folder, arguments.latency_ms)
        local = loader_of(folder / "cache")
        list(local)
        started = time.perf_counter()
        num_batches = len(list(local))
        batch_seconds = (time.perf_counter() - started) / num_batches
        remote = loader_of(cc.open_cache("s3://data/cache", local=folder / "local"))
        read = arguments.videos * clip_bytes(cc.open_cache(folder / "cache"))
        for row, loader in (("local", local), ("store, first epoch", remote), ("store, second epoch", remote)):
            before = num_sent.value
            waited = [seconds for when, seconds in waits(loader, 2 * batch_seconds) if when > WARM_UP_SECONDS]
            share = sum(waited) / (sum(waited) + 2 * batch_seconds * len(waited))
            print(
                f"{row}: waited {share:.1%} of the time after {WARM_UP_SECONDS:g} s, {len(waited)} batches; "
                f"bytes fetched / bytes of the clips {(num_sent.value - before) / read:.2f}"
            )
        print(
            f"local rate {1 / batch_seconds:.1f} batches/s of {BATCH_SIZE} clips; {arguments.videos} videos of "
            f"{human_bytes(num_bytes / arguments.videos)}"
        )
        server.terminate()


if __name__ == "__main__":
    main()
