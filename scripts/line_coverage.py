"""Line coverage of the package by a command of Python and all processes that it starts, also those that are killed.

    python scripts/line_coverage.py -m pytest tests/engine

coverage.py notes the lines of a process when the process ends, and workers are killed. Here all processes share a map
with a byte for each line, which a process sets when it runs the line. coverage.py prints the result. The first lines
that run in a thread of a C library may not be seen.
"""

from __future__ import annotations

import mmap
import os
import sys
import threading

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "chordcache")
MAP = "LINE_MAP"
"""Environment variable: the file of the map. Beside it lies a list of the files, with the position of line 0 of each"""


def record(path):
    """Set the byte of each line of the package that this process runs from now on."""
    with open(path + ".files", encoding="utf-8") as file:
        positions = {name: int(position) for position, _, name in (row.rstrip("\n").partition(" ") for row in file)}
    with open(path, "r+b") as file:
        lines = mmap.mmap(file.fileno(), 0)
    tracers = {}

    def tracer(code, start):
        left = {line for _, _, line in code.co_lines() if line and not lines[start + line]}

        def trace_line(frame, event, _argument):
            if event == "line" and frame.f_lineno in left:
                left.remove(frame.f_lineno)
                lines[start + frame.f_lineno] = 1
            if not left:
                tracers[id(code)] = code, None
                frame.f_trace_lines = False
            return trace_line

        return trace_line if left else None

    def trace_call(frame, _event, _argument):
        code = frame.f_code
        start = positions.get(code.co_filename)
        if start is None:
            return None
        if id(code) not in tracers:
            tracers[id(code)] = code, tracer(code, start)  # with the code, so that no other gets its id
        return tracers[id(code)][1]

    def trace_again(event, _arguments):
        if event != "sys.settrace" and sys.gettrace() is None:
            sys.settrace(trace_call)

    threading.settrace(trace_call)
    sys.settrace(trace_call)
    sys.addaudithook(trace_again)  # Python stops to trace when a tracer raises: RecursionError, or what a signal raises


def main():
    """Run the command, print the lines that did not run, and return the command's exit code."""
    import subprocess  # not above: each process would import it, and tests look at what is imported
    import sysconfig
    import tempfile
    from pathlib import Path

    import coverage

    positions, end = {}, 0
    for file in sorted(Path(PACKAGE).rglob("*.py")):
        positions[str(file)] = end
        end += file.read_bytes().count(b"\n") + 2
    at_start = Path(sysconfig.get_path("purelib"), "line_coverage.pth")  # each Python of this environment runs it
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "map")
        path.write_bytes(bytes(end))
        rows = [f"{position} {file}\n" for file, position in positions.items()]
        Path(f"{path}.files").write_text("".join(rows), encoding="utf-8")
        code = f"exec(open({__file__!r}, encoding='utf-8').read(), {{'__name__': '', '__file__': {__file__!r}}})"
        at_start.write_text(f"import os; {MAP!r} in os.environ and {code}\n", encoding="utf-8")
        try:
            exit_code = subprocess.run([sys.executable, *sys.argv[1:]], env={**os.environ, MAP: str(path)}).returncode
        finally:
            at_start.unlink()
        lines = path.read_bytes()
    measured = coverage.Coverage(data_file=None)
    measured.get_data().add_lines(
        {
            file: [n for n in range(1, stop - start) if lines[start + n]]
            for (file, start), stop in zip(positions.items(), [*positions.values(), end][1:], strict=True)
        }
    )
    measured.report(show_missing=True, skip_covered=True)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
elif MAP in os.environ:
    record(os.environ[MAP])
