"""Train an action classifier on UCF101."""

import torch

import chordcache as cc

dataset = cc.ChordVideoDataset("cache", clip_sampler=cc.RandomClipSampler(num_frames=8, stride=2), size=(112, 112))
loader = cc.make_loader(dataset, batch_size=8, num_workers=2)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(len(dataset.classes)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
for batch in (batch for epoch in range(2) for batch in loader):
    loss = torch.nn.functional.cross_entropy(model(batch["frames"].float()), batch["label"])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
