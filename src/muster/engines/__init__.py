"""What samples: one protocol, the engine that samples on the training weights, and the one on servers."""
