"""The example that orders colours: nothing is lost, and neighbours look alike."""

import torch

from examples import order_colours as example


def test_colours_are_permuted_towards_their_like(capsys):
    torch.manual_seed(0)
    side = 12
    colours = torch.rand(side * side, 3)
    before = example.by_luminance(colours, side)
    grid = example.learned(colours, side, 60)
    assert torch.equal(grid.reshape(-1, 3).sort(0).values, colours.sort(0).values)
    assert example.neighbour_distance(grid) < 0.75 * example.neighbour_distance(before)
    best = example.neighbour_distance(example.assigned(colours, side, 20))
    assert best < example.neighbour_distance(before)


def test_tours_visit_every_cell():
    for reach in (1, 3, 7):
        assert torch.equal(example.shuffled_tour(7, reach).sort().values, torch.arange(49))
