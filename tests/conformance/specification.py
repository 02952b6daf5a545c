"""OpenAI's official specification as the schema tester gets it, with what differs here on purpose.

`openai.json` is a cut (see its `$comment`); every difference has its reason beside it.
"""

import json
from pathlib import Path
from typing import Any

Json = dict[str, Any]

OFFICIAL = Path(__file__).with_name("openai.json")


def specification(*paths: str) -> Json:
    """The part that is about `paths`."""
    spec: Json = json.loads(OFFICIAL.read_text())
    spec["paths"] = {path: spec["paths"][path] for path in paths}
    # Nobody has to log in on loopback.
    spec.pop("security", None)
    spec["components"].pop("securitySchemes", None)
    for path in spec["paths"].values():
        for operation in path.values():
            operation.pop("security", None)
    schemas = spec["components"]["schemas"]
    # Up to 16 stop sequences are taken, not 4.
    for shape in schemas["StopConfiguration"]["oneOf"]:
        if shape.get("type") == "array":
            shape["maxItems"] = 16
    # Up to 20 alternatives are told in text completions too, not 5.
    schemas["CreateCompletionRequest"]["properties"]["logprobs"]["maximum"] = 20
    # A vector is told in base64 to those who ask for it; OpenAI's own SDK always does.
    vector = schemas["Embedding"]["properties"]["embedding"]
    schemas["Embedding"]["properties"]["embedding"] = {"oneOf": [vector, {"type": "string"}]}
    return spec
