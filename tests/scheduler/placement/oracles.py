"""Optima found by trying everything."""

from itertools import combinations, pairwise, permutations

from hypothesis import strategies as st

from molink_scheduler.head.prompt_queue import SPAN_TOKENS


def splits(layers, stages):
    """All ways to give each stage a layer or more."""
    for cuts in combinations(range(1, layers), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *cuts, layers)))


def orders(nodes, longest):
    """All rings of some of the nodes, head first."""
    for size in range(1, min(len(nodes), longest) + 1):
        yield from permutations(nodes, size)


def ring_users(problem, order, counts):
    """Most users within the bound, by the definition: every load, every number of micro-batches."""
    most = 0
    for users in range(1, problem.goal.users_max + 1):
        if not _has_memory(problem, order, counts, users):
            break
        counts_of = range(1, min(users, 2 * len(order)) + 1)
        if not any(_in_time(problem, order, counts, users, k) for k in counts_of):
            break
        most = users
    return most


def _starts(counts):
    return [sum(counts[:place]) for place in range(len(counts))]


def _has_memory(problem, order, counts, users):
    model, last = problem.model, len(order) - 1
    for place, (node, start, n) in enumerate(zip(order, _starts(counts), counts, strict=True)):
        kv = n * users * problem.goal.context_tokens * model.kv_bytes
        weights = sum(model.layer_bytes[start : start + n])
        tables = model.ends_bytes(place == 0, place == last)
        if weights + tables + kv > problem.nodes[node].memory_bytes:
            return False
    return True


def _in_time(problem, order, counts, users, count):
    bound, rows = problem.goal.tpot_s * (1 + 1e-9), -(-users // count)
    prompts = users * problem.goal.prompt_tokens / problem.goal.answer_tokens
    works = problem.model.layer_work or (1.0,) * problem.layers
    trip, nodes = 0.0, [problem.nodes[number] for number in order]
    for place, (node, start, n) in enumerate(zip(nodes, _starts(counts), counts, strict=True)):
        work = sum(works[start : start + n])
        starting = node.step_fixed_s + (node.head_fixed_s if place == len(order) - 1 else 0)
        step = starting + work * (node.decode_fixed_s + rows * node.decode_row_s)
        step += rows * node.head_row_s if place == len(order) - 1 else 0
        prefill = max(node.prefill_row_s, node.decode_fixed_s / SPAN_TOKENS)
        if count * step + prompts * (work * prefill + starting / SPAN_TOKENS) > bound:
            return False
        trip += step
    for place, (a, b) in enumerate(zip(order, (*order[1:], order[0]), strict=True)):
        wire = 0.0 if place == len(order) - 1 else problem.wire_row_s[a][b]
        if (count * rows + prompts) * wire > bound:
            return False
        trip += rows * wire + (problem.delay_s[a][b] if a != b else 0.0)
    return trip <= bound


def best_of_subsets(problem, ring_users=ring_users):
    """Most users of a ring of exactly these nodes, for every set of them."""
    best = {}
    for order in orders(range(len(problem.nodes)), problem.layers):
        key = frozenset(order)
        for counts in splits(problem.layers, len(order)):
            best[key] = max(best.get(key, 0), ring_users(problem, order, counts))
    return best


def best_of_rings(problem):
    """Most users of one ring, and of disjoint rings together."""
    best = best_of_subsets(problem)
    everybody = frozenset(range(len(problem.nodes)))
    known = {frozenset(): 0}

    def most(free):
        if free not in known:
            first = min(free)
            without = most(free - {first})
            known[free] = max(
                [without]
                + [
                    users + most(free - ring)
                    for ring, users in best.items()
                    if first in ring and ring <= free
                ]
            )
        return known[free]

    return max(best.values(), default=0), most(everybody)


PRICES = st.lists(st.integers(1, 9).map(float), min_size=1, max_size=4)


@st.composite
def equal_layers(draw):
    prices = draw(PRICES)
    rooms = draw(st.lists(st.integers(0, 6), min_size=len(prices), max_size=len(prices)))
    return prices, rooms, draw(st.integers(1, 9))


def allowed(rooms, layers):
    return [
        counts
        for counts in splits(layers, len(rooms))
        if all(n <= room for n, room in zip(counts, rooms, strict=True))
    ]


def dot(prices, counts):
    return sum(n * price for n, price in zip(counts, prices, strict=True))
