"""What the scripts here share: their options, a model of a few hundred numbers in torch, and a digest of a state that can be compared."""

import argparse
import hashlib
import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"


def options(description, kinds=None, prefix=None):
    """Parses the options that every script has.

    save trains --steps steps, saving every --every steps, and then --more steps that are not saved.
    load starts with another seed, loads --from with the framework's own call, and trains --more steps.
    Both write the state at the save and the losses after it to --states, so that two such files can be compared.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["save", "load"])
    parser.add_argument("--output-dir", default="out", help="checkpoints go below it")
    parser.add_argument("--from", dest="source", help="load: the checkpoint")
    parser.add_argument("--states", help="write the digest of the state and the losses after it; with several ranks a file per rank, FILE.RANK")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--every", type=int, default=2)
    parser.add_argument("--more", type=int, default=2)
    if kinds:
        parser.add_argument("--kind", choices=list(kinds), default=next(iter(kinds)), help="; ".join(f"{k}: {v}" for k, v in kinds.items()))
    if prefix:
        parser.add_argument("--prefix", default=prefix, help="what the name of a step begins with")
    return parser.parse_args()


def digest(value, name="", into=None):
    """Returns a flat dict of what a state holds: dtype, shape and hash for arrays, repr for all else."""
    into = {} if into is None else into
    if hasattr(value, "to_local"):  # a DTensor: this rank's part
        value = value.to_local()
    if hasattr(value, "detach"):
        value = value.detach().cpu().contiguous()
        dtype, value = str(value.dtype), value.reshape(-1).view(_bytes_type()) if value.numel() else value
        into[name] = f"{dtype} {hashlib.sha256(value.numpy().tobytes()).hexdigest()}"
    elif hasattr(value, "dtype") and hasattr(value, "shape"):
        import numpy

        array = numpy.asarray(value)
        into[name] = f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            digest(value[key], f"{name}/{key}", into)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            digest(item, f"{name}/{i}", into)
    else:
        into[name] = repr(value)
    return into


def _bytes_type():
    import torch

    return torch.uint8


def write_states(path, found, losses, rank=None):
    """Writes what two runs are compared by: the digest of a state, and the losses of the steps after it."""
    if path:
        path = path if rank is None else f"{path}.{rank}"
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"state": found, "losses": losses}, file, indent=1, sort_keys=True)


def torch_setup(what):
    """Makes torch deterministic; a load begins with another seed than a save."""
    import torch

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(7 if what == "save" else 99)


def torch_model():
    """A model that needs the random generator for its dropout."""
    from torch import nn

    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 4))


def torch_batch(step, rank=0):
    """The same batch for the same step, without touching the global generator."""
    import torch

    generator = torch.Generator().manual_seed(1000 * rank + step)
    x = torch.randn(4, 8, generator=generator)
    return x, x[:, :4] * 2


def torch_optimizer(model):
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)


def torch_step(model, optimizer, scheduler, step, rank=0):
    """One step of training; returns the loss, exactly."""
    x, y = torch_batch(step, rank)
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    scheduler.step()
    optimizer.zero_grad()
    return loss.item().hex()
