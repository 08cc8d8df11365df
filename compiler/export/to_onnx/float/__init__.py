"""Float and simulated modules, operator by operator."""
