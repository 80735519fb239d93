"""Tasks whose effects and whose end are one transaction."""
