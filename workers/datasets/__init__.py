"""Where samples come from: arrays, images, texts, sounds, tables, synthetic inputs."""
