"""Caches and sources in object stores (S3, Google Cloud Storage, Azure): all code that knows them."""
