"""An app with tasks for queues that the settings do not have, and a URLconf that imports them."""
