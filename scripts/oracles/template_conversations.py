"""Random conversations for templates.py: the variables that a chat template gets."""

TEXTS = [
    "Hello!",
    "",
    "  leading and trailing space \n",
    "What is 2 + 2?\nAnswer briefly.",
    "Привет, 世界 👋🏽 – naïve café",
    "quotes ' and \" and \\ and <tag> & {{ braces }} {% raw %}",
    "<think>\nold thought\n</think>\n\nanswer",
    "<think>unfinished",
    "line one\n\n\nline two\ttab",
    '<tool_call>\n{"name": "f"}\n</tool_call>',
    "</s> <|im_end|> [INST] <start_of_turn>",
    "\u00a0\u2003\u2028 odd spaces\u0000\u001f",
    "<tool_response>\n42\n</tool_response>",
    "long " * 40,
    "<|channel|>analysis<|message|>hm<|end|>",
]

ARGUMENTS = [
    {},
    {"city": "Zürich", "days": 3},
    {"x": 1.5, "y": -2e20, "ok": True, "none": None},
    {"nested": {"list": [1, "two", [3.0]], "d": {"k": "v"}}, "text": 'a"b\n'},
    {"small": 1e-7, "big": 123456789012345, "empty": [], "eo": {}},
]

NAMES = ["get_weather", "search", "python", "browser.open", "calc"]


def tool(generator, name):
    properties = {
        "city": {"type": "string", "description": "The city — name"},
        "days": {"type": "integer", "default": 3},
        "unit": {"type": "string", "enum": ["c", "f"]},
        "tags": {"type": "array", "items": {"type": "string"}},
        "spot": {
            "type": "object",
            "properties": {"lat": {"type": "number"}, "lon": {"type": ["number", "null"]}},
            "required": ["lat"],
        },
        "any": {"anyOf": [{"type": "string"}, {"type": "number"}], "nullable": True},
    }
    keys = generator.sample(sorted(properties), generator.randint(0, 4))
    function = {
        "name": name,
        "description": generator.choice(["Does things.", "", "Line one\nline two 'quoted'"]),
        "parameters": {
            "type": "object",
            "properties": {key: properties[key] for key in keys},
            "required": keys[:1],
        },
    }
    if generator.random() < 0.2:
        function["strict"] = True
    if generator.random() < 0.2:
        function["return"] = {"type": "string", "description": "The result"}
    if generator.random() < 0.1:
        return function
    return {"type": "function", "function": function}


def content(generator):
    if generator.random() < 0.05:
        parts = []
        for _ in range(generator.randint(1, 3)):
            kind = generator.random()
            if kind < 0.8:
                parts.append({"type": "text", "text": generator.choice(TEXTS)})
            elif kind < 0.9:
                parts.append({"type": "image", "image": "x.png"})
            else:
                parts.append({"type": "image_url", "image_url": {"url": "x"}})
        return parts
    return generator.choice(TEXTS)


def assistant(generator, call_number):
    message = {"role": "assistant", "content": content(generator)}
    if generator.random() < 0.3:
        message["reasoning_content"] = generator.choice(TEXTS)
    if generator.random() < 0.1:
        message["thinking"] = generator.choice(TEXTS)
    if generator.random() < 0.05:
        message["reasoning"] = generator.choice(TEXTS)
    if generator.random() < 0.4:
        calls = []
        for index in range(generator.choice([1, 1, 2])):
            arguments = generator.choice(ARGUMENTS)
            if generator.random() < 0.08:
                arguments = generator.choice(['{"a": 1}', "", "not json"])
            function = {"name": generator.choice(NAMES), "arguments": arguments}
            if generator.random() < 0.96:
                call = {"type": "function", "function": function}
                call["id"] = f"call{call_number:04d}{index}"
            else:
                call = function
            calls.append(call)
        message["tool_calls"] = calls
        if generator.random() < 0.5:
            message["content"] = generator.choice(["", None])
    elif generator.random() < 0.05:
        message["tool_calls"] = []
    return message


def messages(generator):
    result = []
    if generator.random() < 0.5:
        role = "developer" if generator.random() < 0.15 else "system"
        result.append({"role": role, "content": content(generator)})
    for turn in range(generator.randint(0, 4)):
        if generator.random() < 0.98:
            result.append({"role": "user", "content": content(generator)})
        if generator.random() < 0.97:
            result.append(assistant(generator, turn))
            for index, call in enumerate(result[-1].get("tool_calls", [])):
                if generator.random() < 0.95:
                    name = call.get("function", call)["name"]
                    answer = {"role": "tool", "content": content(generator), "name": name}
                    answer["tool_call_id"] = f"call{turn:04d}{index}"
                    if generator.random() < 0.1:
                        answer["content"] = {"result": 42, "ok": True}
                    result.append(answer)
            if "tool_calls" in result[-1] or result[-1]["role"] == "tool":
                if generator.random() < 0.5:
                    result.append(assistant(generator, turn + 50))
    if result and result[-1]["role"] != "user" and generator.random() < 0.9 or not result:
        result.append({"role": "user", "content": content(generator)})
    if generator.random() < 0.01:
        result.append({"role": "unknown", "content": "?"})
    return result


def variables(generator):
    result = {
        "messages": messages(generator),
        "tools": None,
        "documents": None,
        "add_generation_prompt": generator.random() < 0.7,
        "bos_token": generator.choice(["<s>", "<|begin_of_text|>", ""]),
        "eos_token": generator.choice(["</s>", "<|im_end|>"]),
    }
    if generator.random() < 0.5:
        count = generator.randint(0, 3)
        result["tools"] = [tool(generator, name) for name in generator.sample(NAMES, count)]
    if generator.random() < 0.1:
        del result["tools"]
    options = {
        "enable_thinking": [True, False],
        "preserve_thinking": [True, False],
        "add_vision_id": [True, False],
        "reasoning_effort": ["low", "medium", "high"],
        "builtin_tools": [["browser"], ["python", "browser"], []],
        "model_identity": ["You are a test."],
        "thinking": [True, False],
        "thinking_budget": [0, 512, -1],
        "tools_in_user_message": [True, False],
        "date_string": ["29 Nov 2026"],
        "keep_past_thinking": [True, False],
        "continue_final_message": [True, False],
        "xml_tools": [None],
        "documents": [[{"title": "T", "text": "body"}], [{"doc_id": 1, "content": "c"}]],
        "unused": [1],
    }
    for name, values in options.items():
        if generator.random() < 0.2:
            result[name] = generator.choice(values)
    return result
