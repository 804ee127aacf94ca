"""The version of FFmpeg that PyAV uses, and those of its libraries."""

from __future__ import annotations


def describe() -> str:
    """Return the versions as text, such as "8.0 (libavcodec 62.11.100, libavformat 62.3.100)".

    Raise ``ImportError`` if PyAV is not installed, or cannot load its libraries.
    """
    import av

    libraries = ", ".join(f"{name} {'.'.join(map(str, numbers))}" for name, numbers in av.library_versions.items())
    return f"{av.ffmpeg_version_info} ({libraries})"
