"""The fault-injection suite: every guarantee of ``docs/reliability.md`` against real processes, files and disks."""
