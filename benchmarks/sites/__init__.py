"""The settings of each peer that is a Django app, and what they share."""
