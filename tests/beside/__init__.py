"""A project that has other well-known apps installed: ``tox -e beside`` runs its tests."""
