"""What a project opts into: tracing, and endpoints for monitoring. Nothing below knows these modules."""
