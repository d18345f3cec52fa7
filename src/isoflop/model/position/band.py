"""Numbers by clipped offset: from a table with a row for each query (or key) to a number for every pair, and back.

Where indices run with positions, row i of all pairs is row i of the table moved by i places. Such a move is a change of
pitch: no number is looked up, and the gradient is the same move back. A table is wide in the band of N offsets alone;
beyond it, rows go on with their first and their last number.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from isoflop.model.relation import View


def by_query(table_BHTN: Tensor, view: View, lowest: int) -> Tensor:
    """`table[b, h, i, clip(k - q, lowest, lowest + N - 1) - lowest]` for every pair: (B, H, T, S)."""
    if view.first is None:
        index_BHTS = _index(view, lowest, table_BHTN.shape)
        return table_BHTN.expand(len(index_BHTS), -1, -1, -1).gather(-1, index_BHTS)
    columns = view.k_positions.shape[1]
    return _moved(_widened(table_BHTN, _start(view, lowest), table_BHTN.shape[2] + columns), columns)


def by_key(table_BHSN: Tensor, view: View, lowest: int) -> Tensor:
    """`table[b, h, j, clip(k - q, lowest, lowest + N - 1) - lowest]` for every pair: (B, H, T, S)."""
    rows, columns, highest = view.q_positions.shape[1], view.k_positions.shape[1], lowest + table_BHSN.shape[-1] - 1
    if view.first is None:
        return _mirrored(table_BHSN, view, highest)
    # Keys that lie beyond the band for every query are most of a long block, and say one number each.
    left = min(max(lowest - view.first + 1, 0), columns)
    right = min(max(highest - view.first + rows - 1, left), columns)
    near = View(view.q_positions, view.k_positions[:, left:right], view.first + left)
    before, after = (
        table_BHSN[:, :, keys, end].unsqueeze(2).expand(-1, -1, rows, -1)
        for keys, end in ((slice(0, left), 0), (slice(right, None), -1))
    )
    band = [_mirrored(table_BHSN[:, :, left:right], near, highest)] if left < right else []
    return torch.cat([before, *band, after], dim=-1)


def _mirrored(table_BHSN: Tensor, view: View, highest: int) -> Tensor:
    """`by_key`, as `by_query` with queries and keys in each other's places."""
    turned = View(view.k_positions, view.q_positions, None if view.first is None else -view.first)
    return by_query(table_BHSN.flip(-1), turned, -highest).transpose(-1, -2)


def collected(x_BHTS: Tensor, view: View, lowest: int, count: int) -> Tensor:
    """The transpose of `by_query`: the sum, for each query, of what stands at each clipped offset, (B, H, T, count)."""
    if view.first is None:
        empty_BHTN = x_BHTS.new_zeros(*x_BHTS.shape[:3], count)
        return empty_BHTN.scatter_add(-1, _index(view, lowest, empty_BHTN.shape), x_BHTS)
    return _folded(_moved_back(x_BHTS), _start(view, lowest), count)


def met(view: View, lowest: int, count: int) -> slice:
    """The rows of a table of `count` offsets from `lowest` on that a view has a use for."""
    if view.first is None:
        return slice(0, count)
    start, width = _start(view, lowest), view.q_positions.shape[1] + view.k_positions.shape[1] - 1
    first = min(max(start, 0), count - 1)
    return slice(first, max(min(start + width, count), first + 1))


def _index(view: View, lowest: int, shape: torch.Size) -> Tensor:
    index_B1TS = view.offsets.clamp(lowest, lowest + shape[-1] - 1) - lowest
    return index_B1TS.expand(max(shape[0], len(index_B1TS)), shape[1], -1, -1)


def _start(view: View, lowest: int) -> int:
    """Place in the table of the lowest offset in a view."""
    return (view.first or 0) - view.q_positions.shape[1] + 1 - lowest


def _moved(x_TM: Tensor, columns: int) -> Tensor:
    """Row i of T begins T - 1 - i places later: (..., T, M) -> (..., T, columns), M = T + columns."""
    rows, width = x_TM.shape[-2:]
    pitch = width - 1
    return x_TM.flatten(-2)[..., rows - 1 : rows - 1 + rows * pitch].unflatten(-1, (rows, pitch))[..., :columns]


def _moved_back(x_TS: Tensor) -> Tensor:
    """The transpose of `_moved`: (..., T, S) -> (..., T, T + S), zeros where nothing comes from."""
    rows, columns = x_TS.shape[-2:]
    flat = F.pad(x_TS, (0, rows - 1)).flatten(-2)
    return F.pad(flat, (rows - 1, 1)).unflatten(-1, (rows, rows + columns))


def _widened(table_N: Tensor, start: int, width: int) -> Tensor:
    """`table[..., clip(m, 0, N - 1)]` for m = start .. start + width - 1."""
    below, first, last = _bounds(start, width, table_N.shape[-1])
    left = table_N[..., :1].expand(*table_N.shape[:-1], below)
    right = table_N[..., -1:].expand(*table_N.shape[:-1], width - below - (last - first))
    return torch.cat([left, table_N[..., first:last], right], dim=-1)


def _folded(x_M: Tensor, start: int, count: int) -> Tensor:
    """The transpose of `_widened`: (..., M) -> (..., count)."""
    below, first, last = _bounds(start, x_M.shape[-1], count)
    left, inside, right = x_M.tensor_split((below, below + last - first), dim=-1)
    ends = F.pad(left.sum(-1, keepdim=True), (0, count - 1)) + F.pad(right.sum(-1, keepdim=True), (count - 1, 0))
    return F.pad(inside, (first, count - last)) + ends


def _bounds(start: int, width: int, count: int) -> tuple[int, int, int]:
    """Of the places start .. start + width - 1: how many lie below 0, and which lie in 0 .. count - 1 (from, to)."""
    first = min(max(start, 0), count)
    return min(max(-start, 0), width), first, max(min(start + width, count), first)
