"""The commands of chordcache, in the order of ``chordcache --help``."""

COMMANDS = (
    *("scan", "index", "config", "plan", "build"),
    *("finish", "verify", "merge", "pack", "unpack", "gc"),
    *("info", "ls", "show", "report", "bench"),
    *("extractors", "doctor", "completion", "help"),
)
