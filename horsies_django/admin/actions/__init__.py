"""An operator's actions in the admin, and how they are applied to rows."""
