"""Train on the boxes of AVA: predict the coordinates of each person in the frame that shows it."""

import torch

import chordcache as cc

options = {"index": "index.json", "features": ("frames",), "fields": ("boxes",), "size": (112, 112)}
dataset = cc.ChordVideoDataset("cache", clip_sampler=cc.RegularClipSampler(num_frames=64, stride=1), **options)
loader = cc.make_loader(dataset, batch_size=2, num_workers=2)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for frames, found in ((batch["frames"], batch["boxes"]) for epoch in range(2) for batch in loader):
    loss = (model(frames[found["sample"], found["frame"]].float()) - found["boxes"]).square().mean()
    loss.backward()
    optimizer.step()
