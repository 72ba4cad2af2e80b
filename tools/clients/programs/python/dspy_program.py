"""DSPy: the bare model and signatures as JSON, over chat and responses."""

import dspy
from asked import ASK, MODEL, URL, tried, tried_too_long

for kind in ("chat", "responses"):
    lm = dspy.LM(
        f"openai/{MODEL}",
        api_base=f"{URL}/v1",
        api_key="none",
        model_type=kind,
        cache=False,
        num_retries=0,
    )
    dspy.configure(lm=lm, adapter=dspy.JSONAdapter())
    tried(f"{kind} text", "21" in str(lm(ASK)))
    answer = dspy.Predict("question -> town: str, degrees: int")(question=ASK)
    tried(f"{kind} Predict", answer.degrees == 21)
    tried_too_long(lm, what=f"{kind} too long")
