"""Keyset scans: find and change rows of large tables in bounded chunks, without COUNT or OFFSET."""
