"""Nothing that a row holds controls a terminal, or makes one log line two."""
