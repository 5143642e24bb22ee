"""What a compiled program sends between devices, read from its text."""

import math
import re

COLLECTIVE = re.compile(
    r"= (?P<shapes>.*?) (?P<kind>all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
)
ARRAY = re.compile(r"\b(pred|[a-z]+(\d+))\[([\d,]*)\]")


def computations(program):
    """Return the lines of every computation of a program, by its name."""
    found, name = {}, None
    for line in program.splitlines():
        if head := re.match(r"(?:ENTRY )?%?([\w.\-]+) \(.*\{$", line):
            name = head[1]
            found[name] = []
        elif name is not None:
            found[name].append(line)
    return found


def size(shapes):
    """Return the bytes of an array or a tuple of arrays, as the program writes its type."""
    total = 0
    for _, bits, lengths in ARRAY.findall(shapes):
        total += int(bits or 8) // 8 * math.prod(int(length) for length in lengths.split(",") if length)
    return total


def outside_loops(program):
    """Return what the program sends once, in the same form."""
    entry = re.search(r"^ENTRY %?([\w.\-]+)", program, flags=re.MULTILINE)[1]
    return _sent(computations(program)[entry])


def of_loops(program):
    """Return what every turn of a loop and every branch sends, inner ones aside: pairs of a kind and its bytes."""
    bodies = set(re.findall(r"(?:body|true_computation|false_computation)=%?([\w.\-]+)", program))
    for branches in re.findall(r"branch_computations=\{(.*?)\}", program):
        bodies |= set(re.findall(r"[\w.\-]+", branches))
    return {name: _sent(lines) for name, lines in computations(program).items() if name in bodies}


def _sent(lines):
    found = [COLLECTIVE.search(line) for line in lines]
    return [(match["kind"], size(match["shapes"])) for match in found if match]
