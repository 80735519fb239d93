"""Masking of sensitive values in messages, keys and reprs."""
