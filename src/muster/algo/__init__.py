"""The algorithm: pure functions, tensors in and tensors out; no config, no I/O."""
