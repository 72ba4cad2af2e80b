"""The reference of the API has every endpoint, every object and every link that it makes."""

import re

from tools.docs_site.api_page import METHODS, api_page, document

PAGE = api_page()


def test_every_endpoint_and_object_has_a_heading():
    found = document()
    endpoints = {
        f"{method.upper()} {path}"
        for path, methods in found["paths"].items()
        for method in METHODS
        if method in methods
    }
    assert {"POST /v1/chat/completions", "GET /plan", "POST /cluster/invites"} <= endpoints
    headings = set(re.findall(r"^### (.+)$", PAGE, re.MULTILINE))
    assert headings == endpoints | set(found["components"]["schemas"])


def test_fields_of_a_body_are_rows():
    assert re.search(r"^\| `temperature` \| number or null \|", PAGE, re.MULTILINE)
