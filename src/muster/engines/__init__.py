"""What samples: one protocol, and the engine that samples on the training weights."""
