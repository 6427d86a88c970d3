#!/usr/bin/env python3
"""Saves with megatron-core's dist_checkpointing on two gloo ranks, in the places where Megatron-LM saves: OUTPUT_DIR/iter_0000002 and the
tracker latest_checkpointed_iteration.txt. The sharded state is the script's; megatron.training itself is not on PyPI.
"""

import os

import torch
import torch.distributed as dist

# Megatron asks the current GPU where to put the flags that its ranks exchange.
torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.synchronize = lambda *_: None

from megatron.core import dist_checkpointing as checkpointing
from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor

import common


def state_of(rank, ranks, step, seed):
    """Two tensors, each split over the ranks, the moments of both, and what is common."""
    torch.manual_seed(seed + rank)
    sharded = {}
    for key in ("decoder.weight", "output.weight"):
        for name in (key, f"optimizer.state.exp_avg.{key}", f"optimizer.state.exp_avg_sq.{key}"):
            sharded[name] = ShardedTensor.from_rank_offsets(name, torch.randn(8, 16) * step, (0, rank, ranks))
    sharded["rng_state"] = ShardedObject("rng_state", {"torch": torch.get_rng_state()}, (ranks,), (rank,), replica_id=0)
    return {**sharded, "iteration": step, "checkpoint_version": 3.0, "args": {"hidden_size": 16}}


def main():
    options = common.options(__doc__)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if options.what == "save":
        for step in range(options.every, options.steps + 1, options.every):
            state = state_of(rank, ranks, step, 7)
            directory = os.path.join(options.output_dir, f"iter_{step:07d}")
            if rank == 0:
                os.makedirs(directory)
            dist.barrier()
            checkpointing.save(state, directory)
            dist.barrier()
            if rank == 0:
                with open(os.path.join(options.output_dir, "latest_checkpointed_iteration.txt"), "w", encoding="utf-8") as file:
                    file.write(str(step))
        found = {k: v.data if hasattr(v, "data") else v for k, v in state_of(rank, ranks, step, 7).items()}
    else:
        found = checkpointing.load(state_of(rank, ranks, 0, 99), options.source)
    common.write_states(options.states, common.digest(found), [], rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
