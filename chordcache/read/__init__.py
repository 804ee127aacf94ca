"""Readers of a cache as arrays. None of them needs torch."""
