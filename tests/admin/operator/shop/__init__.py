"""The shop whose tasks fill the large database."""
