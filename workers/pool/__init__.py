"""Ways to run requests on workers: in this process, in processes, on Ray."""
