"""The insight page: one HTML file with its own plots; nothing is loaded from elsewhere."""
