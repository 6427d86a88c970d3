#!/usr/bin/env python3
"""Saves as small scripts do: one file by torch.save, overwritten in place (OUTPUT_DIR/ckpt.pt, as nanoGPT's train.py), or safetensors."""

import os

import torch

import common

KINDS = {
    "nanogpt": "ckpt.pt with model, optimizer, iter_num, best_val_loss, config: no state of the random generator",
    "numbered": "ckpt_000002.pt with the same",
    "weights": "model_000002.pt, the weights alone",
    "safetensors": "model_000002.safetensors by safetensors.torch.save_file",
}


def main():
    options = common.options(__doc__, KINDS)
    common.torch_setup(options.what)
    model = common.torch_model()
    optimizer, scheduler = common.torch_optimizer(model)
    os.makedirs(options.output_dir, exist_ok=True)
    if options.what == "save":
        for step in range(1, options.steps + 1):
            common.torch_step(model, optimizer, scheduler, step)
            if step % options.every == 0:
                save(options, model, optimizer, step)
    else:
        checkpoint = torch.load(options.source)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        step = checkpoint["iter_num"]
    found = common.digest({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
    common.write_states(options.states, found, [])


def save(options, model, optimizer, step):
    def path(stem, suffix):
        number = "" if options.kind == "nanogpt" else f"_{step:06d}"
        return os.path.join(options.output_dir, stem + number + suffix)

    if options.kind == "safetensors":
        from safetensors.torch import save_file

        save_file(model.state_dict(), path("model", ".safetensors"), metadata={"format": "pt"})
    elif options.kind == "weights":
        torch.save(model.state_dict(), path("model", ".pt"))
    else:
        checkpoint = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "model_args": {"n_layer": 1},
            "iter_num": step,
            "best_val_loss": torch.tensor(1.5),
            "config": {"out_dir": "out", "always_save_checkpoint": True},
        }
        torch.save(checkpoint, path("ckpt", ".pt"))


if __name__ == "__main__":
    main()
