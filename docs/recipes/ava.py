"""Train on the boxes of AVA: predict the coordinates of each person in the frame that shows it."""

import torch

import chordcache as cc

videos, sampler = cc.videos.indexed("index.json", "cache"), cc.RegularClipSampler(num_frames=64, stride=1)
dataset = cc.ChordVideoDataset(videos, clip_sampler=sampler, fields=("boxes",), size=(112, 112))
loader = cc.make_loader(dataset, batch_size=2, num_workers=2)
model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for frames, boxes in ((batch["frames"], batch["boxes"]) for epoch in range(2) for batch in loader):
    loss = (model(frames[boxes["sample"], boxes["frame"]].float()) - boxes["boxes"]).square().mean()
    loss.backward()
    optimizer.step()
