#!/usr/bin/env python3
"""Writes OUTPUT_DIR/checkpoints.jsonl with tinker-cookbook's own CheckpointManager, and reads it with its own reader.

The state itself is on a server in this framework, so a stand-in answers for the server: it names states, and keeps nothing.
"""

import asyncio
import os

import common

os.environ.setdefault("TINKER_API_KEY", "none")

from tinker_cookbook import checkpoint_utils

KINDS = {
    "periodic": "a row per save, and the final one",
    "rolling": "rolling rows between the periodic ones, no final one: an interrupted run",
}


class Saved:
    def __init__(self, path):
        self.path = path

    async def result_async(self):
        return self


class Client:
    """Stands in for the training client, the service client and the REST client of tinker."""

    run = "12345678-0000-4000-8000-0123456789ab:train:0"

    async def save_state_async(self, name, ttl_seconds=None):
        return Saved(f"tinker://{self.run}/weights/{name}")

    async def save_weights_for_sampler_async(self, name, ttl_seconds=None):
        return Saved(f"tinker://{self.run}/sampler_weights/{name}")

    def create_rest_client(self):
        return self

    async def delete_checkpoint_from_tinker_path_async(self, path):
        pass


async def save(options):
    os.makedirs(options.output_dir)
    client = Client()
    rolling = 1 if options.kind == "rolling" else 0
    manager = checkpoint_utils.CheckpointManager(client, client, options.output_dir, save_every=options.every, rolling_save_every=rolling)
    for step in range(1, options.steps + 1):
        await manager.maybe_save_async(step, {"epoch": 0, "batch": step, "elapsed_tokens": 100 * step}, elapsed_tokens=100 * step)
    if options.kind == "periodic":
        await manager.save_final_async({"epoch": 1, "batch": options.steps, "final": True})
    else:
        await manager.finalize_async()


def main():
    options = common.options(__doc__ + " --from is the directory.", KINDS)
    if options.what == "save":
        asyncio.run(save(options))
    directory = options.source if options.what == "load" else options.output_dir
    last = checkpoint_utils.get_last_checkpoint(directory)
    rows = checkpoint_utils.load_checkpoints_file(directory)
    found = common.digest({"last": last.to_dict() if last else None, "rows": [r.to_dict() for r in rows]})
    common.write_states(options.states, found, [])


if __name__ == "__main__":
    main()
