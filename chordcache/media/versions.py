"""The versions of the libraries that this program uses."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from collections.abc import Callable
from functools import partial

from chordcache import __version__

_PACKAGES = ("av", "numpy", "simplejpeg", "lmdb", "h5py", "librosa", "torch", "torchcodec")

_NOT_INSTALLED = "not installed"


def tool_versions() -> dict[str, str]:
    """Return the versions of the tools that decide whether and how an input is decoded."""
    return {"chordcache": __version__, **{name: importlib.metadata.version(name) for name in ("av", "simplejpeg")}}


def content_versions() -> dict[str, str]:
    """Return the versions of all that decides about the content of a cache."""
    versions = {**tool_versions(), "numpy": importlib.metadata.version("numpy")}
    opencv = opencv_packages()
    return {**versions, "OpenCV": opencv[-1].partition(" ")[2]} if opencv else versions


def library_versions() -> dict[str, str]:
    """Return the version of each library by its name, or the reason why it is not known. No library raises an error.

    A package that is not there is "not installed". Only PyAV is imported, for the versions of FFmpeg.
    """
    versions = {"Python": platform.python_version(), "platform": platform.platform()}
    versions |= {name: _version(partial(importlib.metadata.version, name)) for name in _PACKAGES}
    return {
        **versions,
        "OpenCV": ", ".join(opencv_packages()) or _NOT_INSTALLED,
        "FFmpeg": _version(_ffmpeg),
    }


def opencv_packages() -> list[str]:
    """Return the packages of OpenCV as "name version". There are four, and they overwrite each other."""
    packages = {
        f"{str(package.name).lower().replace('_', '-')} {package.version}"
        for package in importlib.metadata.distributions()
        if re.match(r"opencv[-_]", str(package.name), re.IGNORECASE)
    }
    return sorted(packages)


def _version(function: Callable[[], str]) -> str:
    try:
        return function()
    except importlib.metadata.PackageNotFoundError:
        return _NOT_INSTALLED
    except Exception as error:  # noqa: BLE001 # a broken installation may raise anything, and this helps to repair it
        return " ".join(f"cannot be loaded: {type(error).__name__}: {error}".split())


def _ffmpeg() -> str:
    """Return the version of FFmpeg and of its libraries, such as "8.0 (libavcodec 62.11.100, libavformat 62.3.100)"."""
    import av

    libraries = ", ".join(f"{name} {'.'.join(map(str, numbers))}" for name, numbers in av.library_versions.items())
    return f"{av.ffmpeg_version_info} ({libraries})"
