from molink_scheduler.placement import Goal, make_plan
from molink_scheduler.units import GIB
from tools.experiments.placement.placement_clusters import home_cluster
from tools.experiments.room.lent_plans import LAYERS, PCS, served


def test_a_split_without_leases_serves_what_its_plan_says_and_longer_requests_with_them():
    problem = home_cluster(1, PCS, LAYERS, Goal(context_tokens=8192))
    plan = make_plan(problem.model, problem.nodes, problem.network, problem.goal, rings_max=1)
    (ring,) = plan.rings
    own = served(ring, problem, 0)
    assert (own.users, own.tokens) == (ring.users, min(one.kv_tokens for one in ring.stages))
    assert served(ring, problem, 8 * GIB).tokens > own.tokens
    slow = Goal(context_tokens=8192, tpot_s=ring.tpot_alone_s + 1e-3)
    hurried = home_cluster(1, PCS, LAYERS, slow)
    assert served(ring, hurried, 8 * GIB).users < own.users, "a token has a bound"
