"""Devices: what is moved is a copy, so that what holds a network keeps it where it is."""

from __future__ import annotations

import torch
from torch import nn

from bridgemem.residuals.learned import Learned, LearnedNet, LearnedSettings
from bridgemem.training.devices import moved
from builders import random_log, random_transitions


def test_a_network_that_is_moved_stays_where_it_was_too() -> None:
    net = nn.Linear(2, 2)
    assert moved(net, "cpu") is net
    assert next(moved(net, "meta").parameters()).is_meta
    assert not next(net.parameters()).is_meta
    assert moved(nn.Identity(), "meta") is not None


def test_residuals_on_another_device_leave_those_here_as_they_are() -> None:
    learned = Learned(LearnedSettings(hidden=4), LearnedNet(4, LearnedSettings(hidden=4)))
    assert next(learned.to("meta").net.parameters()).is_meta
    assert not next(learned.net.parameters()).is_meta
    transitions = random_transitions(random_log(1))
    assert next(transitions.to("meta").reader.parameters()).is_meta
    assert not next(transitions.reader.parameters()).is_meta
    assert torch.isfinite(transitions.log_pi).all()
