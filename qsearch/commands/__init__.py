"""Functions behind the commands on one model, one ``.qmod`` or stored studies."""
