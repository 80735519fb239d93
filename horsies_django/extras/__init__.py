"""What a project opts into: tracing, and endpoints for monitoring and for the output of tasks.

Nothing below knows these modules.
"""
