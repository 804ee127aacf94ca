"""The commands of chordcache, in the order of ``chordcache --help``."""

COMMANDS = (
    *("scan", "index", "build"),
    *("verify", "merge", "pack", "unpack", "passport", "gc", "export", "push", "pull"),
    *("info", "ls", "show", "report", "bench"),
    *("doctor", "completion", "help"),
)
