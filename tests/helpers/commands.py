"""The commands of chordcache, in the order of ``chordcache --help``."""

COMMANDS = (
    *("scan", "index", "build"),
    *("verify", "merge", "pack", "unpack", "gc", "export", "push", "pull"),
    *("info", "ls", "show", "report", "bench"),
    *("doctor", "completion", "help"),
)
