"""A rank that reads epochs under each framework. Arguments: the folder of the cache and of the results.

``rank-N.json`` has the ``sample_id`` of each sample of each epoch of each case.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader

import chordcache as cc
from chordcache.train.samplers.budget_batches import BudgetBatchSampler

BATCH_SIZE = 4
NUM_EPOCHS = 2
FOLDER = sys.argv[1]


def dataset() -> cc.ChordVideoDataset:
    return cc.ChordVideoDataset(
        f"{FOLDER}/cache", clip_sampler=cc.RandomClipSampler(1), size=(16, 16), clips_per_video=23
    )


def weighted() -> Any:
    both = cc.concat([dataset(), cc.subset(dataset(), range(6))], weights=[0.7, 0.3])
    return cc.make_loader(both, BATCH_SIZE, 0)


def joined(make: Callable[[Any], Any]) -> Any:
    return make(cc.concat([cc.subset(dataset(), range(9, 23)), cc.subset(dataset(), range(9))]))


LOADERS: dict[str, Callable[[], Any]] = {
    "make_loader": lambda: cc.make_loader(dataset(), BATCH_SIZE, 0),
    "workers": lambda: cc.make_loader(dataset(), BATCH_SIZE, 1),
    "sampler": lambda: DataLoader(
        dataset(), BATCH_SIZE, sampler=cc.ChordSampler(dataset(), batch_size=BATCH_SIZE), collate_fn=cc.collate
    ),
    "budget": lambda: cc.make_loader(dataset(), None, 0, sampler=BudgetBatchSampler(dataset(), max_frames=BATCH_SIZE)),
    "concat": lambda: joined(lambda both: cc.make_loader(both, BATCH_SIZE, 0)),
    "weights": weighted,
}
OWN_LOADERS: dict[str, Callable[[], Any]] = {
    "ClipLoader": lambda: cc.ClipLoader(dataset(), BATCH_SIZE, num_threads=1),
    "ClipLoader, budget": lambda: cc.ClipLoader(
        dataset(), None, sampler=BudgetBatchSampler(dataset(), max_frames=BATCH_SIZE), num_threads=1
    ),
    "ClipLoader, concat": lambda: joined(lambda both: cc.ClipLoader(both, BATCH_SIZE, num_threads=1)),
}


def stateful() -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    sampler = cc.ChordSampler(dataset(), batch_size=BATCH_SIZE)
    return StatefulDataLoader(dataset(), BATCH_SIZE, sampler=sampler, collate_fn=cc.collate)


def combined() -> Any:
    from lightning.pytorch.utilities import CombinedLoader

    return CombinedLoader({"one": OWN_LOADERS["ClipLoader"](), "other": OWN_LOADERS["ClipLoader"]()})


STATEFUL_LOADERS: dict[str, Callable[[], Any]] = {
    "ClipLoader": OWN_LOADERS["ClipLoader"],
    "ClipLoader, budget": OWN_LOADERS["ClipLoader, budget"],
    "workers": LOADERS["workers"],
    "make_loader, budget": LOADERS["budget"],
    "StatefulDataLoader": stateful,
    "CombinedLoader": combined,
}


def plain_batch_sampler() -> DataLoader[Any]:
    data = dataset()
    batches = BudgetBatchSampler(data, max_frames=BATCH_SIZE)
    return DataLoader(data, batch_sampler=batches, collate_fn=cc.collate)


def counted(loader: Any) -> Iterator[Any]:
    """Yield the batches, of which each rank must have as many as the length says."""
    num_left = len(loader)
    for batch in loader:
        distributed.all_reduce(torch.ones(1))  # a rank that has fewer batches would leave the others here
        yield batch
        num_left -= 1
    assert num_left == 0, num_left


def passes(loader: Any) -> list[list[str]]:
    return [[sample for batch in counted(loader) for sample in batch["sample_id"]] for _ in range(NUM_EPOCHS)]


def refusal(function: Callable[[], object]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


# Frameworks


def under_torch() -> Iterator[tuple[str, object]]:
    for name, make in (LOADERS | OWN_LOADERS | {"batch_sampler": plain_batch_sampler}).items():
        yield f"torch: {name}", passes(make())


def under_lightning() -> Iterator[tuple[str, object]]:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.epochs: dict[int, list[str]] = {}

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            batch = batch.get("one", batch)  # of a CombinedLoader
            self.epochs.setdefault(self.current_epoch, []).extend(batch["sample_id"])
            return self.weight * batch["frames"].float().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.001)

    def fit(make: Callable[[], Any], resume: str | None = None, **options: Any) -> Model:
        model = Model()
        silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        world_size = distributed.get_world_size()
        options = {"max_epochs": NUM_EPOCHS, "enable_checkpointing": False, **silent, **options}
        trainer = lightning.Trainer(accelerator="cpu", devices=world_size, strategy="ddp", **options)
        trainer.fit(model, make(), ckpt_path=resume, weights_only=False)
        return model

    def resumed(name: str, make: Callable[[], Any], stop: int) -> list[list[str]]:
        """Train until a checkpoint, and go on from it with all things new."""
        path = f"{FOLDER}/{name}-{stop}".replace(" ", "-")
        checkpoint = lightning.pytorch.callbacks.ModelCheckpoint(path, "state", every_n_train_steps=stop)
        first = fit(make, enable_checkpointing=True, callbacks=[checkpoint], max_steps=stop)
        second = fit(make, f"{path}/state.ckpt", max_epochs=3)
        for epoch, samples in second.epochs.items():
            first.epochs.setdefault(epoch, []).extend(samples)
        return [first.epochs[epoch] for epoch in range(3)]

    for name, make in (LOADERS | OWN_LOADERS).items():
        yield f"lightning: {name}", list(fit(make).epochs.values())
    by_hand = fit(plain_batch_sampler, use_distributed_sampler=False)
    yield "lightning: batch_sampler", list(by_hand.epochs.values())
    yield "lightning refuses", refusal(lambda: fit(plain_batch_sampler))
    for name, make in STATEFUL_LOADERS.items():
        length = -(-23 // distributed.get_world_size() // BATCH_SIZE)
        for stop in (length, length + 1):
            yield f"lightning: {name} resumed after {stop} of {length}", resumed(name, make, stop)


def under_fabric() -> Iterator[tuple[str, object]]:
    import lightning

    fabric = lightning.Fabric(accelerator="cpu", devices=distributed.get_world_size(), strategy="ddp")
    fabric.launch()
    for name, make in LOADERS.items():
        yield f"fabric: {name}", passes(fabric.setup_dataloaders(make()))
    for name, make in OWN_LOADERS.items():
        yield f"fabric: {name}", passes(make())
    yield "fabric refuses", refusal(lambda: fabric.setup_dataloaders(plain_batch_sampler()))

    def resumed() -> None:
        loader = cc.make_loader(dataset(), BATCH_SIZE, 0)
        loader.sampler.load_state_dict({**loader.sampler.state_dict(0), "epoch": 3})
        next(iter(fabric.setup_dataloaders(loader)))

    yield "fabric refuses a state", refusal(resumed)


def under_accelerate() -> Iterator[tuple[str, object]]:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    for name, make in (LOADERS | OWN_LOADERS | {"batch_sampler": plain_batch_sampler}).items():
        yield f"accelerate: {name}", passes(accelerator.prepare(make()))
    loader = accelerator.prepare(LOADERS["make_loader"]())
    sampler = loader.batch_sampler.batch_sampler.sampler
    batches = iter(loader)
    used = list(next(batches)["sample_id"])
    resumed = LOADERS["make_loader"]()
    resumed.sampler.load_state_dict(sampler.state_dict(num_batches_consumed=1))
    yield "accelerate: resumed", [used + [sample for batch in resumed for sample in batch["sample_id"]]]
    explicit = cc.ChordSampler(23, rank=distributed.get_rank(), world_size=distributed.get_world_size(), batch_size=4)
    loader = accelerator.prepare(cc.make_loader(dataset(), 4, 0, sampler=explicit))
    yield "accelerate refuses", refusal(lambda: len(loader))

    def tensors(samples: Iterable[dict[str, Any]]) -> dict[str, torch.Tensor]:
        ids = [list(map(int, sample["sample_id"].split(":"))) for sample in samples]
        return {"sample_id": torch.tensor(ids)}

    for options in ({"split_batches": True}, {"dispatch_batches": True}):
        config = accelerate.DataLoaderConfiguration(**options)
        loader = cc.make_loader(dataset(), 6, 0, collate=tensors)
        accelerator = accelerate.Accelerator(cpu=True, dataloader_config=config)
        loader = accelerator.prepare(loader)
        epochs = [[f"{e}:{i}" for batch in counted(loader) for e, i in batch["sample_id"].tolist()] for _ in range(2)]
        yield f"accelerate: {next(iter(options))}", epochs


def under_trainer() -> Iterator[tuple[str, object]]:
    import transformers

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(1))
            self.ids: list[str] = []

        def forward(self, frames: torch.Tensor, sample_id: list[str], **_: Any) -> dict[str, torch.Tensor]:
            self.ids += sample_id
            return {"loss": (self.weight * frames.float().mean()).sum()}

    def train(make: Callable[[], Any]) -> list[list[str]]:
        class Trainer(transformers.Trainer):
            def get_train_dataloader(self) -> Any:
                return self.accelerator.prepare(make())

        options = transformers.TrainingArguments(
            FOLDER, use_cpu=True, num_train_epochs=NUM_EPOCHS, report_to=[], save_strategy="no", disable_tqdm=True
        )
        model = Model()
        Trainer(model, options, train_dataset=dataset()).train()
        half = len(model.ids) // NUM_EPOCHS
        return [model.ids[:half], model.ids[half:]]

    for name in ("make_loader", "budget", "weights", "ClipLoader"):
        yield f"trainer: {name}", train((LOADERS | OWN_LOADERS)[name])


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    distributed.init_process_group("gloo")
    results: dict[str, object] = {}
    for framework in (under_torch, under_fabric, under_lightning, under_accelerate, under_trainer):
        results |= dict(framework())
    with open(f"{FOLDER}/rank-{distributed.get_rank()}.json", "w") as file:
        json.dump(results, file)
    distributed.destroy_process_group()
