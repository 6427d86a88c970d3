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


# The environment and the packages whose versions a README names.
PACKAGES = {
    "accelerate": ("hf", ["accelerate", "torch", "safetensors"]),
    "dcp": ("hf", ["torch", "safetensors"]),
    "plain": ("hf", ["torch", "safetensors"]),
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
    "plain/nanogpt": Case("hf", "train_plain.py"),
    "plain/numbered": Case("hf", "train_plain.py", ["--kind", "numbered"]),
    "plain/weights": Case("hf", "train_plain.py", ["--kind", "weights", *ONE]),
    "plain/safetensors": Case("hf", "train_plain.py", ["--kind", "safetensors", *ONE]),
}
