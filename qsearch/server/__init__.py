"""Studies for several users: a queue, tokens and uploads behind the dashboard, and a client."""
