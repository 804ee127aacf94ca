"""Train on pairs of a video and its JSON in the tar files of a WebDataset."""

import torch

import chordcache as cc

dataset = cc.ChordVideoDataset("cache", clip_sampler=cc.RandomClipSampler(), fields=("score",), size=(112, 112))
loader = cc.make_loader(dataset, batch_size=4, num_workers=2)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for batch in (batch for epoch in range(2) for batch in loader):
    loss = torch.nn.functional.mse_loss(model(batch["frames"].float())[:, 0], batch["score"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
