"""The measured bodies of the peers whose tasks need a Django that is set up already."""
