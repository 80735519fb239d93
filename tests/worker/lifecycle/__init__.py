"""The life of a task, from its send to its end, through the public interface."""
