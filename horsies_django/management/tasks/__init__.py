"""What ``horsies_task`` is made of: its flags, and one module for each way of using the inspector."""
