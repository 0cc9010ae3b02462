"""torch with accelerate: accelerate launch accelerate_before.py"""

import numpy as np
import torch
from accelerate import Accelerator

rng = np.random.default_rng(0)
x = rng.standard_normal((1000, 20), dtype="float32")
y = np.sin(x.sum(axis=1, keepdims=True))
weights = [0.2 * rng.standard_normal(shape, dtype="float32") for shape in [(20, 32), (32,), (32, 1), (1,)]]

accelerator = Accelerator(gradient_accumulation_steps=2)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
with torch.no_grad():
    for parameter, weight in zip(model.parameters(), weights, strict=True):
        parameter.copy_(torch.from_numpy(weight.T))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
rows = torch.utils.data.TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
loader = torch.utils.data.DataLoader(rows, batch_size=100 // accelerator.num_processes, shuffle=False)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

losses = []
for epoch in range(3):
    sums = []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        sums.append(accelerator.reduce(loss.detach(), "mean").item())
    losses.append(np.mean(sums))
accelerator.print("loss", *(f"{loss:.6f}" for loss in losses))
