"""Where labels go beside crowded points, so that none covers another. Floats in pixels in, floats out."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


Point = tuple[float, float]
Line = tuple[Point, Point]

NUM_DIRECTIONS = 32
FIRST_RADIUS = 6.0
RADIUS_STEP = 6.0
NUM_RADII = 60
NEIGHBOURHOOD = 100.0
MARKER_CORE = 4.0  # a leader line that passes nearer to another marker seems to belong to it

# The price of a square pixel covered or a line crossed, in pixels of distance between label and point.
LABEL_COST = 10.0
OBSTACLE_COST = 3.0
LABEL_CROSSING_COST = 200.0
LINE_CROSSING_COST = 60.0


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels, with `y` upwards."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: "Box") -> float:
        """Shared area in square pixels."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    def contains(self, other: "Box") -> bool:
        """Whether the other lies within, borders included."""
        return (
            self.left <= other.left
            and self.bottom <= other.bottom
            and other.right <= self.right
            and other.top <= self.top
        )

    def nearest(self, point: Point) -> Point:
        """The point of the rectangle that is nearest to another, where a leader line ends."""
        x, y = point
        return min(max(x, self.left), self.right), min(max(y, self.bottom), self.top)

    def is_crossed_by(self, line: Line) -> bool:
        """Whether a line between two points runs through the inside of the rectangle."""
        # Liang-Barsky: the part of the line that is between the vertical and between the horizontal edges
        enter, leave = 0.0, 1.0
        for start, end, low, high in (
            (line[0][0], line[1][0], self.left, self.right),
            (line[0][1], line[1][1], self.bottom, self.top),
        ):
            if start == end:
                if not low < start < high:
                    return False
                continue
            first, second = sorted(((low - start) / (end - start), (high - start) / (end - start)))
            enter, leave = max(enter, first), min(leave, second)
        return enter < leave


def place_labels(
    points: Sequence[Point], sizes: Sequence[Point], frame: Box, obstacles: Sequence[Box] = ()
) -> list[Box]:
    """A place for each label, as near to its point as there is room.

    Greedy and deterministic: points with the most neighbours choose first, each the cheapest place on circles around
    it. Distance costs; covering something, or a line from point to label that crosses something, costs much more.

    Args:
        points (`Sequence[Point]`):
            The points to label, in pixels.
        sizes (`Sequence[Point]`):
            Width and height of their labels.
        frame (`Box`):
            Where labels may be; one that finds no room inside is put outside.
        obstacles (`Sequence[Box]`, *optional*):
            What they should not cover, such as the markers.

    Returns:
        `list[Box]`: One rectangle per point, in the order of the points.
    """
    placed: dict[int, Box] = {}
    for index in sorted(range(len(points)), key=lambda i: (-_crowding(points, i), i)):
        others = [point for i, point in enumerate(points) if i != index]
        surroundings = _Surroundings(
            labels=list(placed.values()),
            leaders=[(points[i], box.nearest(points[i])) for i, box in placed.items()],
            markers=[Box(x - MARKER_CORE, y - MARKER_CORE, x + MARKER_CORE, y + MARKER_CORE) for x, y in others],
            obstacles=obstacles,
        )
        placed[index] = _cheapest(points[index], sizes[index], frame, surroundings)
    return [placed[index] for index in range(len(points))]


@dataclass(frozen=True)
class _Surroundings:
    """What a label has to get along with."""

    labels: Sequence[Box]
    leaders: Sequence[Line]
    markers: Sequence[Box]
    obstacles: Sequence[Box]

    def cost(self, box: Box, point: Point) -> float:
        """Price of a label there, in pixels of distance."""
        leader = (point, box.nearest(point))
        crossed_labels = sum(label.is_crossed_by(leader) for label in self.labels)
        crossing_leaders = sum(box.is_crossed_by(other) for other in self.leaders)
        crossed_lines = sum(_cross(leader, other) for other in self.leaders)
        crossed_markers = sum(marker.is_crossed_by(leader) for marker in self.markers)
        return (
            math.dist(*leader)
            + LABEL_COST * sum(box.overlap(label) for label in self.labels)
            + OBSTACLE_COST * sum(box.overlap(obstacle) for obstacle in self.obstacles)
            + LABEL_CROSSING_COST * (crossed_labels + crossing_leaders)
            + LINE_CROSSING_COST * (crossed_lines + crossed_markers)
        )


def _cheapest(point: Point, size: Point, frame: Box, surroundings: _Surroundings) -> Box:
    candidates = list(_candidates(point, size))
    best, best_cost = candidates[0][1], math.inf
    for distance, box in candidates:
        if distance >= best_cost:
            break  # all others are farther away
        if frame.contains(box) and (cost := surroundings.cost(box, point)) < best_cost:
            best, best_cost = box, cost
    return best


def _candidates(point: Point, size: Point) -> Iterator[tuple[float, Box]]:
    """Distances and rectangles on growing circles around the point, beginning at its right."""
    width, height = size
    for step in range(NUM_RADII):
        radius = FIRST_RADIUS + RADIUS_STEP * step
        for direction in range(NUM_DIRECTIONS):
            angle = 2 * math.pi * direction / NUM_DIRECTIONS
            x = point[0] + radius * math.cos(angle) + width / 2 * _side(math.cos(angle))
            y = point[1] + radius * math.sin(angle) + height / 2 * _side(math.sin(angle))
            yield radius, Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def _side(cosine: float) -> float:
    """-1 for a label wholly on one side, 1 on the other; in between it slides past the point."""
    return max(-1.0, min(1.0, 3 * cosine))


def _crowding(points: Sequence[Point], index: int) -> int:
    return sum(math.dist(points[index], point) < NEIGHBOURHOOD for point in points)


def _cross(line: Line, other: Line) -> bool:
    """Whether two lines have an inner point in common."""
    return _turn(*line, other[0]) * _turn(*line, other[1]) < 0 and _turn(*other, line[0]) * _turn(*other, line[1]) < 0


def _turn(start: Point, end: Point, point: Point) -> float:
    """Positive where the point is to the left of the line."""
    return (end[0] - start[0]) * (point[1] - start[1]) - (end[1] - start[1]) * (point[0] - start[0])
