"""Sources of samples: arrays, images, texts, sounds, tables, synthetic inputs."""
