"""Caches in buckets: their objects, and a folder on a local disk that fills itself from one."""
