"""A model of your own, here DistMult without times: bridgemem evaluate DATA -b mymodel.py:MyModel."""

import torch

import bridgemem as bm
from bridgemem.events.queries import Queries


class MyModel(bm.Backbone):
    """DistMult: a vector for each entity and each directed relation."""

    name = "my-model"

    def __init__(self, entity, relation):
        self.entity, self.relation = entity, relation

    @classmethod
    def train(cls, dataset, settings, training):
        """Learn from the train split alone; each event is two queries, for its object and for its subject."""
        facts, n_relations = Queries.of(dataset.train).to(training.device), 2 * dataset.train.n_relations
        entity = torch.randn(dataset.train.n_entities, 32, device=training.device, requires_grad=True)
        relation = torch.randn(n_relations, 32, device=training.device, requires_grad=True)
        optimizer = torch.optim.Adam([entity, relation], lr=0.01)
        for _ in range(10):
            for rows in torch.randperm(len(facts)).split(1024):
                batch = facts.take(rows.to(training.device))
                logits = (entity[batch.actor] * relation[batch.relation]) @ entity.T
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(logits, batch.answer).backward()
                optimizer.step()
        return cls(entity.detach(), relation.detach())

    def score(self, queries, past):
        """Log scores [queries, entities]; `past` holds the events before each query's step, which are not used here."""
        return ((self.entity[queries.actor] * self.relation[queries.relation]) @ self.entity.T).log_softmax(1)

    def tensors(self):
        """What a folder keeps."""
        return {"entity": self.entity, "relation": self.relation}

    @classmethod
    def restore(cls, settings, tensors):
        """The model again, from what `tensors` gave."""
        return cls(tensors["entity"], tensors["relation"])

    def to(self, device):
        """The same on a device, cpu or cuda."""
        return MyModel(self.entity.to(device), self.relation.to(device))
