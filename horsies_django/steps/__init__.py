"""Steps: long work in plain Python that goes on where a run before it ended."""
