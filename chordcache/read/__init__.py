"""From a cache to tensors. ``dataset`` is the only module here that needs torch."""
