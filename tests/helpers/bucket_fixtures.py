"""Fixtures of a server of buckets, and of the environment that leads to it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from helpers import buckets


@pytest.fixture(scope="module")
def proxy() -> Iterator[buckets.Proxy]:
    with buckets.moto() as port:
        proxy = buckets.Proxy(port)
        yield proxy
        proxy.close()


@pytest.fixture
def environment(proxy: buckets.Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in {**buckets.VARIABLES, "AWS_ENDPOINT_URL": proxy.url, "NO_PROXY": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)
    proxy.reset()
