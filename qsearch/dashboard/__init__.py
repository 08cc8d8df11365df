"""The dashboard: a REST API over the store, and a page that shows it. No SQL."""
