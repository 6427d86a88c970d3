#!/usr/bin/env python3
"""Saves a tiny JAX model with Orbax in OUTPUT_DIR, and loads it with the CheckpointManager; or with Flax's old flax.training.checkpoints."""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp

import common

KINDS = {
    "manager": "CheckpointManager, one unnamed item",
    "async": "CheckpointManager, saving asynchronously",
    "items": "CheckpointManager, items state and metrics, step prefix",
    "plain": "StandardCheckpointer, no manager",
    "flax": "flax.training.checkpoints, one msgpack file per step",
    "flax-orbax": "flax.training.checkpoints, which saves with Orbax unless told not to",
}
OPTIMIZER = optax.adam(0.01)


def start(seed):
    key = jax.random.key(seed)
    key, a, b = jax.random.split(key, 3)
    params = {"first": jax.random.normal(a, (8, 16)), "last": jax.random.normal(b, (16, 4))}
    return {"params": params, "opt": OPTIMIZER.init(params), "step": jnp.int32(0), "rng": jax.random.key_data(key)}


@jax.jit
def train(state):
    key, noise = jax.random.split(jax.random.wrap_key_data(state["rng"]))
    x = jax.random.normal(noise, (4, 8))

    def loss_of(params):
        return ((jnp.tanh(x @ params["first"]) @ params["last"] - x[:, :4]) ** 2).mean()

    loss, gradient = jax.value_and_grad(loss_of)(state["params"])
    updates, opt = OPTIMIZER.update(gradient, state["opt"])
    params = optax.apply_updates(state["params"], updates)
    return {"params": params, "opt": opt, "step": state["step"] + 1, "rng": jax.random.key_data(key)}, loss


def manager(options, directory):
    prefix = "ckpt" if options.kind == "items" else None
    wait = options.kind == "async"
    names = ("state", "metrics") if options.kind == "items" else None
    return ocp.CheckpointManager(
        directory, item_names=names, options=ocp.CheckpointManagerOptions(max_to_keep=3, step_prefix=prefix, enable_async_checkpointing=wait)
    )


def save(options, target, state, step):
    if options.kind.startswith("flax"):
        from flax.training import checkpoints

        checkpoints.save_checkpoint(os.path.abspath(options.output_dir), state, step, keep=3)
    elif options.kind == "plain":
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(os.path.abspath(os.path.join(options.output_dir, f"state_{step}")), state)
    elif options.kind == "items":
        items = ocp.args.Composite(state=ocp.args.StandardSave(state), metrics=ocp.args.JsonSave({"loss": 0.5}))
        target.save(step, args=items)
    else:
        target.save(step, args=ocp.args.StandardSave(state))


def load(options, target, empty):
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, empty)
    if options.kind.startswith("flax"):
        from flax.training import checkpoints

        return checkpoints.restore_checkpoint(os.path.abspath(options.source), empty)
    if options.kind == "plain":
        with ocp.StandardCheckpointer() as checkpointer:
            return checkpointer.restore(os.path.abspath(options.source), abstract)
    step = target.latest_step()
    if options.kind == "items":
        return target.restore(step, args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract)))["state"]
    return target.restore(step, args=ocp.args.StandardRestore(abstract))


def main():
    options = common.options(__doc__ + " --from is OUTPUT_DIR itself, but for plain.", KINDS)
    if options.kind == "flax":
        import flax

        flax.config.update("flax_use_orbax_checkpointing", False)
    state = start(7 if options.what == "save" else 99)
    target = None
    if options.kind not in ("plain", "flax", "flax-orbax"):
        target = manager(options, os.path.abspath(options.source if options.what == "load" else options.output_dir))
    if options.what == "save":
        os.makedirs(options.output_dir, exist_ok=True)
        for step in range(1, options.steps + 1):
            state, _ = train(state)
            if step % options.every == 0:
                save(options, target, state, step)
    else:
        state = load(options, target, state)
    if target:
        target.wait_until_finished()
        target.close()
    found, losses = common.digest(state), []
    for _ in range(options.more):
        state, loss = train(state)
        losses.append(float(loss).hex())
    common.write_states(options.states, found, losses)


if __name__ == "__main__":
    main()
