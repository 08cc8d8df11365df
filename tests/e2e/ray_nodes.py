"""``python ray_nodes.py``: a Ray cluster of nodes on this machine, steered by lines on stdin.

Prints its address; "add" adds a node of one CPU, "kill" ends the oldest but the head, the end
of stdin all.
"""

from __future__ import annotations

import sys

from ray.cluster_utils import Cluster

SMALL = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
# Nobody scales it or reads what its workers print.
HEAD = {**SMALL, "no_monitor": True, "include_log_monitor": False}


def main(nodes: int) -> None:
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    others = [cluster.add_node(**SMALL) for _ in range(nodes - 1)]
    print(cluster.address, flush=True)
    for line in sys.stdin:
        if line.strip() == "add":
            others.append(cluster.add_node(**SMALL))
        else:
            cluster.remove_node(others.pop(0), allow_graceful=False)
        print("done", flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main(int(sys.argv[1]))
