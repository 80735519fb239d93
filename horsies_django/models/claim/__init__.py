"""The claim: which tasks are next up, and what a worker takes."""
