"""CENET's loss over both scorers in pieces that stay in a core's cache; on a host its passes over [2n, E] cost most."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

CACHED = 1 << 20  # scores at a time


class _Piecewise(torch.autograd.Function):
    """The loss and, on the way, its gradients: each piece of the scores is made, used and forgotten."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, entity: Tensor, at: Tensor, bias: Tensor, first: Tensor, answer: Tensor
    ) -> Tensor:
        (_, n, width), entities = query.shape, len(entity)
        into_query, into_entity = torch.empty_like(query), torch.zeros_like(entity)
        loss = query.new_zeros(())
        bounds = [*range(0, n, max(CACHED // (2 * entities), 1)), n]
        starts = [*first[bounds[:-1]].tolist(), len(at)]
        for (low, high), (begin, end) in zip(pairwise(bounds), pairwise(starts), strict=True):
            q = query[:, low:high].reshape(-1, width)
            scores = q @ entity.T
            by_scorer = scores.view(2, high - low, entities)
            for flat, extra in zip(by_scorer.flatten(1), bias, strict=True):
                flat.scatter_add_(0, at[begin:end] - low * entities, extra[begin:end])
            place = answer[low:high].expand(2, -1).unsqueeze(2)
            own = by_scorer.gather(2, place).squeeze(2)
            top = scores.amax(1, keepdim=True)
            total = scores.sub_(top).exp_().sum(1).view(2, -1)
            nll = total.log() + top.view(2, -1) - own
            loss -= torch.logsumexp(-nll, 0).sum()
            # d loss / d score = (softmax - [answer]) times the scorer's part in the mixture; `scores` holds e^score now
            by_scorer.scatter_add_(2, place, -total.unsqueeze(2))
            weight = ((-nll).softmax(0) / total).view(-1, 1) / n
            into_query[:, low:high] = ((scores @ entity) * weight).view(2, high - low, width)
            into_entity.addmm_(scores.T, q * weight)
        ctx.save_for_backward(into_query, into_entity)
        return loss / n

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        into_query, into_entity = ctx.saved_tensors
        return into_query * grads[0], into_entity * grads[0], None, None, None, None


def piecewise_loss(query: Tensor, entity: Tensor, at: Tensor, bias: Tensor, first: Tensor, answer: Tensor) -> Tensor:
    """- mean log(softmax1 + softmax2)[answer] of the scores query @ entity.T, with what the past adds to them.

    query float [2, n, d] of both scorers; entity float [E, d]; at int64 [m], ascending: places in a flat [n, E] where
    the scorers add bias float [2, m]; first int [n]: where those of each query begin; answer int64 [n].
    """
    return _Piecewise.apply(query, entity, at, bias, first, answer)
