"""An app with tasks for unknown queues, and a URLconf that imports them."""
