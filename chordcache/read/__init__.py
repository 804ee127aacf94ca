"""Readers that turn a cache into tensors. ``dataset`` is the only module here that needs torch."""
