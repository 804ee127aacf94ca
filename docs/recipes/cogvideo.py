"""Train on pairs of a video and its text, as CogVideoX reads them."""

import torch

import chordcache as cc

dataset = cc.ChordVideoDataset("cache", clip_sampler=cc.RandomClipSampler(num_frames=9, fps=8), size=(64, 96))
loader = cc.make_loader(dataset, batch_size=4, num_workers=2)
model = torch.nn.EmbeddingBag(256, 9 * 3 * 64 * 96)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for batch in (batch for epoch in range(2) for batch in loader):
    letters = torch.nn.utils.rnn.pad_sequence([torch.tensor(list(text.encode())) for text in batch["caption"]], True)
    loss = torch.nn.functional.mse_loss(model(letters), batch["frames"].flatten(1) / 255)
    loss.backward()
    optimizer.step()
