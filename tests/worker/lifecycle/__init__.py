"""What is promised of a task's life, seen through the public interface."""
