"""The cases of make_testdata."""

import dataclasses


@dataclasses.dataclass
class Case:
    environment: str  # of ../setup
    script: str
    options: list = dataclasses.field(default_factory=list)
    ranks: int = 1
    variables: dict = dataclasses.field(default_factory=dict)
    drop: tuple = ()  # what the output directory has besides, as globs
    directory: str = ""  # absolute: for a framework that writes the path of the output directory into its files


# The environment and the packages whose versions a README names.
PACKAGES = {
    "accelerate": ("hf", ["accelerate", "torch", "safetensors"]),
    "composer": ("composer", ["mosaicml", "torch"]),
    "dcp": ("hf", ["torch", "safetensors"]),
    "deepspeed": ("deepspeed", ["deepspeed", "torch"]),
    "flax": ("jax", ["flax", "orbax-checkpoint", "jax"]),
    "keras": ("jax", ["keras", "jax", "h5py", "orbax-checkpoint"]),
    "lightning": ("lightning", ["lightning", "torch"]),
    "megatron": ("megatron", ["megatron-core", "torch"]),
    "orbax": ("jax", ["orbax-checkpoint", "jax", "jaxlib", "optax"]),
    "plain": ("hf", ["torch", "safetensors"]),
    "tensorflow": ("tf", ["tensorflow-cpu"]),
    "torchtitan": ("titan", ["torchtitan", "torch"]),
    "tinker": ("tinker", ["tinker-cookbook", "tinker"]),
    "trl": ("trl", ["trl", "transformers", "accelerate", "torch"]),
}

ONE = ["--steps", "2"]  # one save

CASES = {
    "dcp/fsdp2": Case("hf", "train_dcp.py", ranks=2),
    "dcp/ddp": Case("hf", "train_dcp.py", ["--kind", "ddp", *ONE], ranks=2),
    "dcp/async": Case("hf", "train_dcp.py", ["--kind", "async", *ONE], ranks=2),
    "dcp/ranks": Case("hf", "train_dcp.py", ["--kind", "ranks"], ranks=2),
    "dcp/hf": Case("hf", "train_dcp.py", ["--kind", "hf"], ranks=2),
    "dcp/hf-consolidated": Case("hf", "train_dcp.py", ["--kind", "hf-consolidated"], ranks=2),
    "accelerate/plain": Case("hf", "train_accelerate.py"),
    "accelerate/bin": Case("hf", "train_accelerate.py", ["--kind", "bin", *ONE]),
    "accelerate/ddp": Case("hf", "train_accelerate.py", ranks=2),
    "lightning/copy": Case("lightning", "train_lightning.py", ["--kind", "copy"], directory="/ckpt"),
    "lightning/link": Case("lightning", "train_lightning.py", ["--kind", "link"], directory="/ckpt"),
    "lightning/weights": Case("lightning", "train_lightning.py", ["--kind", "weights", *ONE], directory="/ckpt"),
    "lightning/fsdp": Case("lightning", "train_lightning.py", ["--kind", "fsdp", *ONE], ranks=2, directory="/ckpt"),
    "lightning/fsdp2": Case("lightning", "train_lightning.py", ["--kind", "fsdp2"], ranks=2, directory="/ckpt"),
    "orbax/manager": Case("jax", "train_orbax.py", directory="/ckpt"),
    "orbax/async": Case("jax", "train_orbax.py", ["--kind", "async"], directory="/ckpt"),
    "orbax/items": Case("jax", "train_orbax.py", ["--kind", "items", *ONE], directory="/ckpt"),
    "orbax/plain": Case("jax", "train_orbax.py", ["--kind", "plain", *ONE], directory="/ckpt"),
    "flax/msgpack": Case("jax", "train_orbax.py", ["--kind", "flax"], directory="/ckpt"),
    "flax/orbax": Case("jax", "train_orbax.py", ["--kind", "flax-orbax", *ONE], directory="/ckpt"),
    "keras/backup": Case("jax", "train_keras.py"),
    "keras/backup-double": Case("jax", "train_keras.py", ["--kind", "backup-double"]),
    "keras/checkpoints": Case("jax", "train_keras.py", ["--kind", "checkpoints", *ONE]),
    "keras/orbax": Case("jax", "train_keras.py", ["--kind", "orbax", *ONE], directory="/ckpt"),
    "torchtitan/sync": Case("titan", "train_titan.py", ranks=2),
    "torchtitan/async": Case("titan", "train_titan.py", ["--kind", "async", *ONE], ranks=2),
    "deepspeed/plain": Case("deepspeed", "train_deepspeed.py", ONE, ranks=2),
    "deepspeed/zero1": Case("deepspeed", "train_deepspeed.py", ["--kind", "zero1"], ranks=2),
    "deepspeed/zero2": Case("deepspeed", "train_deepspeed.py", ["--kind", "zero2", *ONE], ranks=2),
    "deepspeed/zero3": Case("deepspeed", "train_deepspeed.py", ["--kind", "zero3", *ONE], ranks=2),
    "deepspeed/pipeline": Case("deepspeed", "train_deepspeed.py", ["--kind", "pipeline", *ONE], ranks=2),
    "deepspeed/moe": Case("deepspeed", "train_deepspeed.py", ["--kind", "moe", *ONE], ranks=2),
    "composer/plain": Case("composer", "train_composer.py"),
    "composer/weights": Case("composer", "train_composer.py", ["--kind", "weights", *ONE]),
    "tensorflow/manager": Case("tf", "train_tf.py", directory="/ckpt"),
    "megatron/dist": Case("megatron", "train_megatron.py", ranks=2),
    "trl/sft": Case("trl", "train_trl.py", ONE),
    "trl/grpo": Case("trl", "train_trl.py", ["--kind", "grpo", *ONE]),
    "tinker/periodic": Case("tinker", "train_tinker.py", ["--steps", "5"]),
    "tinker/rolling": Case("tinker", "train_tinker.py", ["--kind", "rolling", "--steps", "5"]),
    "plain/nanogpt": Case("hf", "train_plain.py"),
    "plain/numbered": Case("hf", "train_plain.py", ["--kind", "numbered"]),
    "plain/weights": Case("hf", "train_plain.py", ["--kind", "weights", *ONE]),
    "plain/safetensors": Case("hf", "train_plain.py", ["--kind", "safetensors", *ONE]),
}
