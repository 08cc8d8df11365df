"""Where samples come from: .npz files, image folders, seeded synthetic inputs."""
