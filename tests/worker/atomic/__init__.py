"""Tasks that store their effects and their end in one transaction."""
