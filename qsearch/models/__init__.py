"""Models shipped with their data; see NOTICE for where they come from."""
