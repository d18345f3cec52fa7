"""Makes the helpers beside this file importable from every test, and keeps torch to one thread."""

import torch

torch.set_num_threads(1)
