"""What an operator is told in numbers: roll-ups, counts, the state of the queue."""
