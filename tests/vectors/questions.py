"""What kind of question a prompt is, and how its answer is trimmed."""

from __future__ import annotations

from api.intake import trim_for
from api.routing import Router
from api.settings import ApiSettings
from shared.postprocess import postprocess
from tests.vectors.comparison import Differences, exact, partial, stated
from tests.vectors.surroundings import Surroundings
from tests.vectors.vector import Vector
from worker.settings import EngineSettings
from worker.think import Tags, strip_think


def routing(vector: Vector, around: Surroundings) -> Differences:
    router = Router(ApiSettings.load())
    prompt = vector.input["prompt"]
    decision = router.route(prompt)
    found = {
        "pick_max_new_tokens": decision.budget_tokens,
        "route": decision.route.value,
        "is_code_question": router.is_code(prompt),
        "is_hard_code_question": router.is_hard_code(prompt),
        "is_long_answer_question": router.is_long_answer(prompt),
    }
    return stated(vector.wanted, found) or partial(vector.wanted, found)


def postprocess_answer(vector: Vector, around: Surroundings) -> Differences:
    """Through the decision that is made when the request comes in, as an answer's text alone comes back."""
    settings, prompt = ApiSettings.load(), vector.input["prompt"]
    router = Router(settings)
    trim = trim_for(settings, router, prompt, router.route(prompt), None)
    return exact(vector.wanted, postprocess(vector.input["text"], trim))


def think(vector: Vector, around: Surroundings) -> Differences:
    given, tags = vector.input, Tags(*EngineSettings.load().think_tags)
    found = strip_think(given["text"], template_opens=given["template_opens_think"], tags=tags)
    return exact(vector.wanted, found)
