"""Readers that turn a cache into tensors. The dataset, the loaders and ``augment`` need torch."""
