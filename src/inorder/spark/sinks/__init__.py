"""Where the batches of a stream go."""
