"""Code that several test files use."""
