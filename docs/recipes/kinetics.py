"""Train an action classifier on Kinetics, with 8 frames per second at any source rate."""

import torch

import chordcache as cc

sampler = cc.RandomClipSampler(num_frames=8, fps=8)
dataset = cc.ChordVideoDataset("cache", clip_sampler=sampler, crop=cc.crops.RandomResizedCrop((112, 112)))
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(len(dataset.classes)))
optimizer, loader = torch.optim.SGD(model.parameters(), lr=1e-6), cc.ClipLoader(dataset, batch_size=8)
for batch in (batch for epoch in range(2) for batch in loader):
    loss = torch.nn.functional.cross_entropy(model(batch["frames"].float()), batch["label"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
