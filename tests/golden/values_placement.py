"""A question for a placement and its answers, as a process that plans and GET /plan write them."""

import json

from molink.coordinator.planning.plan_process import QUESTION, answer_fields, answer_from_fields
from molink.terminal.plan_report import plan_fields
from molink_scheduler.model_cost import ModelCost
from molink_scheduler.placement import (
    Forecast,
    Goal,
    LinkFacts,
    Network,
    NodeFacts,
    Plan,
    Shortage,
    StageForecast,
    Standby,
)
from molink_scheduler.placement.question import PlacementQuestion
from tests.golden.codec import Codec

QUESTIONS = Codec(
    "placement-questions",
    lambda question: json.dumps(QUESTION.write(question)),
    lambda line: QUESTION.read(json.loads(line)),
)


@QUESTIONS.value
def question_smallest():
    return PlacementQuestion.of(ModelCost((1,), 1, 1), (), Network(), Goal())


@QUESTIONS.value
def question_with_everything():
    model = ModelCost(
        layer_bytes=(2**30, 2**31),
        kv_bytes=4096,
        row_bytes=8192,
        head_bytes=2**28,
        tail_bytes=2**29,
        tied=True,
        layer_work=(1.0, 0.5),
        layer_file_bytes=(2**29, 2**30),
        head_file_bytes=2**27,
        tail_file_bytes=2**28,
        together=((0, 2),),
        embeds_everywhere=True,
        each_file_bytes=2**26,
    )
    first = NodeFacts("aaaa", 2**50, 0.001, 1e-05, 0.0001)
    second = NodeFacts(
        id="bbbb",
        memory_bytes=2**33,
        decode_fixed_s=3600.0,
        decode_row_s=0.0,
        prefill_row_s=0.002,
        step_fixed_s=0.0005,
        head_row_s=0.003,
        head_fixed_s=0.004,
        upload_bytes_per_s=2.5e6,
        name="Annas PC – Küche",
        pc="aaaa",
    )
    links = {
        ("aaaa", "bbbb"): LinkFacts(1.25e6, 0.0155),
        ("bbbb", "aaaa"): LinkFacts(float("inf"), float("inf")),
    }
    return PlacementQuestion.of(
        model,
        (first, second),
        Network(links, LinkFacts(1e6, 0.02)),
        Goal(0.1, 4096, 0, 128, 65_536, 3),
        "even",
    )


def forecast_of_two() -> Forecast:
    stages = (
        StageForecast("aaaa", "anna", (0, 20), 2**33, 131_072, 2**34, 2**33 + 5, 0.01, 0.875, 0.5),
        StageForecast("bbbb", "Küche", (20, 21), 2**30, 0, 2**31, 2**30, 0.02, 0.125, 0.0),
    )
    return Forecast(
        users=12,
        users_memory=15,
        micro_batches=4,
        tpot_s=0.2,
        tpot_alone_s=0.1,
        ttft_s=2.5,
        tokens_per_s=60.0,
        delay_s=0.06,
        bottleneck="the device of anna, busy 88% of the time",
        stages=stages,
    )


def plan():
    forecast = forecast_of_two()
    standbys = (Standby("cccc", "ben", "would make each token 10 ms later"),)
    return Plan(Goal(micro_batches=4), (forecast, forecast), standbys)


def plan_of_nothing():
    return Plan(Goal(), ())


def shortage():
    return Shortage(3, 2**40, 2**33, "no PC lends anything – yet")


ANSWERS = Codec(
    "placement-answers",
    lambda found: json.dumps(answer_fields(found)),
    lambda line: answer_from_fields(json.loads(line)),
)
ANSWERS.add(plan=plan, plan_of_nothing=plan_of_nothing, shortage=shortage)

FOR_SCRIPTS = Codec(
    "plan-json", lambda found: json.dumps(plan_fields(found, "org/model"), indent=2)
)
"""What `molink plan --json` prints."""

FOR_SCRIPTS.add(plan=plan, plan_of_nothing=plan_of_nothing)

CODECS = (QUESTIONS, ANSWERS, FOR_SCRIPTS)
