"""What an operator may do: verbs, and how they reach the rows."""
