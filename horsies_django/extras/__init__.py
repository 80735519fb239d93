"""What a project opts into: endpoints for monitoring. Nothing below knows these modules."""
