"""Django settings of the peers that are Django apps."""
