"""A task that waits for another one."""

from pathlib import Path

from helpers import processes


def meet(names: tuple[str, str]) -> bool:
    """Return whether the task of the other name has begun within 20 seconds."""
    own, other = map(Path, names)
    own.touch()
    return processes.wait_until(other.exists, 60)
