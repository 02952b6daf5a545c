# ruff: noqa: E501  # replies stand as models say them
"""What models of each family say, as their model cards and chat templates document it."""

from dataclasses import dataclass, field
from typing import Any

from worker.text.toolcalls.deepseek import DeepSeek, DeepSeekV3
from worker.text.toolcalls.family import Family
from worker.text.toolcalls.gemma import FunctionGemma, Gemma4
from worker.text.toolcalls.glm import Glm, LongCat
from worker.text.toolcalls.harmony import Harmony
from worker.text.toolcalls.hermes import Hermes
from worker.text.toolcalls.invoke import DeepSeekMarkup, MiniCpm, MiniMax
from worker.text.toolcalls.kimi import KimiK2, KimiK3
from worker.text.toolcalls.llama import LlamaJson, ToldJson
from worker.text.toolcalls.mistral import Mistral, MistralList
from worker.text.toolcalls.muse import Muse
from worker.text.toolcalls.pythonic import BarePythonic, Pythonic
from worker.text.toolcalls.qwen_coder import QwenCoder

FAMILIES: tuple[type[Family], ...] = (
    BarePythonic, DeepSeek, DeepSeekMarkup, DeepSeekV3, FunctionGemma, Gemma4, Glm, Harmony, Hermes, KimiK2,
    KimiK3, LlamaJson, LongCat, MiniCpm, MiniMax, Mistral, MistralList, Muse, Pythonic, QwenCoder, ToldJson,
)  # fmt: skip

Call = tuple[str, dict[str, Any]]

PARIS: Call = ("get_weather", {"city": "Paris"})
OSLO: Call = ("get_weather", {"city": "Oslo", "days": 3})
TIME: Call = ("get_time", {})


@dataclass(frozen=True)
class Sample:
    family: type[Family]
    text: str
    calls: list[Call]
    content: str = ""
    reasoning: str = ""
    ids: list[str] = field(default_factory=list)


SAMPLES: tuple[Sample, ...] = (
    Sample(
        Hermes,
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        [PARIS],
    ),
    Sample(
        Hermes,
        "<think>\nWeather, then.\n</think>\n\nLet me look.\n\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
        '<tool_call>\n{"arguments": {"city": "Oslo", "days": 3}, "name": "get_weather"}\n</tool_call>',
        [PARIS, OSLO],
        content="Let me look.",
        reasoning="Weather, then.",
    ),
    Sample(Hermes, '<tool_call>{"name": "get_time"}</tool_call>', [TIME]),
    Sample(
        Hermes,
        '<tool_call>[{"name": "get_weather", "arguments": "{\\"city\\": \\"Paris\\"}"}, '
        '{"type": "function", "function": {"name": "get_time", "arguments": null}}]</tool_call>',
        [PARIS, TIME],
    ),
    Sample(
        Hermes,
        '<tool_call>{"name": "write", "arguments": {"path": "a\nb \\u00e9 \\ud83d\\ude00", "lines": '
        '["</tool", -1.5e3, [], {}, true, null]}}</tool_call> done',
        [("write", {"path": "a\nb é 😀", "lines": ["</tool", -1500.0, [], {}, True, None]})],
        content="done",
    ),
    Sample(
        QwenCoder,
        "I will check.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "</function>\n</tool_call>",
        [PARIS],
        content="I will check.",
    ),
    Sample(
        QwenCoder,
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n3\n"
        "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
        [OSLO, TIME],
    ),
    Sample(
        QwenCoder,
        '<tool_call>\n<function=write>\n<parameter=path>\n  if x < 3:\n\n    print("<b>")\n\n</parameter>\n'
        "<parameter=lines>\n[1, 'two', True]\n</parameter>\n<parameter=options>\n{\"a\": {}}\n</parameter>\n"
        "</function>\n</tool_call>",
        [
            (
                "write",
                {
                    "path": '  if x < 3:\n\n    print("<b>")\n',
                    "lines": [1, "two", True],
                    "options": {"a": {}},
                },
            )
        ],
    ),
    Sample(
        Glm,
        "<think>Hm.</think>Checking.<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        [OSLO],
        content="Checking.",
        reasoning="Hm.",
    ),
    Sample(Glm, "<tool_call>get_time</tool_call>\n<tool_call>get_time\n</tool_call>", [TIME, TIME]),
    Sample(Glm, '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>', [PARIS]),
    Sample(
        Glm,
        "<tool_call>other<arg_key>a</arg_key><arg_value>[1]</arg_value>"
        "<arg_key>b</arg_key><arg_value>plain words</arg_value></tool_call>",
        [("other", {"a": [1], "b": "plain words"})],
    ),
    Sample(
        LongCat,
        "<longcat_tool_call>get_weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>Oslo</longcat_arg_value>\n<longcat_arg_key>days</longcat_arg_key>\n"
        "<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>",
        [OSLO],
    ),
    Sample(
        MiniMax,
        '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Oslo</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>\n<invoke name="get_time">\n</invoke>\n'
        "</minimax:tool_call>",
        [OSLO, TIME],
    ),
    Sample(
        MiniMax,
        '<minimax:tool_call><invoke name="get_weather"><parameter name="metric">Yes</parameter>'
        '<parameter name="city">\na > b & "c"\n</parameter></invoke></minimax:tool_call>',
        [("get_weather", {"metric": True, "city": 'a > b & "c"'})],
    ),
    Sample(
        MiniCpm,
        '<function name="get_weather"><param name="city">Oslo</param><param name="days">3</param></function>\n'
        '<function name="write"><param name="path"><![CDATA[a < b && c\n]]></param></function>',
        [OSLO, ("write", {"path": "a < b && c\n"})],
    ),
    Sample(
        DeepSeekMarkup,
        'Looking.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n'
        '<｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>\n'
        '<｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>\n'
        '</｜DSML｜invoke>\n<｜DSML｜invoke name="other">\n'
        '<｜DSML｜parameter name="x" string="false">[1, 2]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
        "</｜DSML｜function_calls>",
        [OSLO, ("other", {"x": [1, 2]})],
        content="Looking.",
    ),
    Sample(
        Muse,
        "to=self<|message|>The user wants weather.<|eom|><|start|>assistant to=user<|message|>One moment.<|eom|>"
        '<|start|>assistant to=get_weather<|message|><atem:function_calls>\n<atem:invoke name="get_weather">\n'
        '<atem:parameter name="city">Oslo</atem:parameter>\n<atem:parameter name="days">3</atem:parameter>\n'
        "</atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=user<|message|>Sunny.<|eot|>",
        [OSLO],
        content="One moment.\n\nSunny.",
        reasoning="The user wants weather.",
    ),
    Sample(
        KimiK2,
        "I'll check.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_call_begin|>functions.get_time:1'
        "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        [PARIS, TIME],
        content="I'll check.",
        ids=["functions.get_weather:0", "functions.get_time:1"],
    ),
    Sample(
        KimiK3,
        "<|open|>response<|sep|>Checking.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Oslo<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="integer"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|>'
        '<|open|>call tool="other" index="2"<|sep|><|open|>json type="object"<|sep|>{"a": [1]}<|close|>json<|sep|>'
        "<|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>",
        [OSLO, ("other", {"a": [1]})],
        content="Checking.",
    ),
    Sample(Mistral, '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}', [PARIS]),
    Sample(
        Mistral,
        'Yes.[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city": "Paris"}[TOOL_CALLS]get_time{}',
        [PARIS, TIME],
        content="Yes.",
    ),
    Sample(
        MistralList,
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}, '
        '{"name": "get_time", "arguments": {}}]',
        [PARIS, TIME],
    ),
    Sample(
        Pythonic,
        '<|tool_call_start|>[get_weather(city="Oslo", days=3), get_time()]<|tool_call_end|>Checking.',
        [OSLO, TIME],
        content="Checking.",
    ),
    Sample(
        Pythonic,
        "<|tool_call_start|>[get_weather(city=Paris, metric=True), other.name(a={'b': [1, None, (2.5,)]}, "
        'c=\'it\\\'s\', d="""x\ny""", e=true)]<|tool_call_end|>',
        [
            ("get_weather", {"city": "Paris", "metric": True}),
            ("other.name", {"a": {"b": [1, None, [2.5]]}, "c": "it's", "d": "x\ny", "e": True}),
        ],
    ),
    Sample(Pythonic, '<|tool_call_start|>[{"name": "get_time", "arguments": {}}]<|tool_call_end|>', [TIME]),
    Sample(BarePythonic, '<|python_start|>[get_weather(city="Paris")]<|python_end|>', [PARIS]),
    Sample(BarePythonic, "[get_time(), get_weather(city='Oslo', days=3)]", [TIME, OSLO]),
    Sample(BarePythonic, "[see (this) list]", [], content="[see (this) list]"),
    Sample(
        Gemma4,
        '<|tool_call>call:get_weather{city:<|"|>Oslo<|"|>,days:3}<tool_call|>'
        '<|tool_call>call:write{path:<|"|>a, {b}: "c"<|"|>,options:{deep:{x:[1,<|"|>y<|"|>,true]}}}<tool_call|>',
        [OSLO, ("write", {"path": 'a, {b}: "c"', "options": {"deep": {"x": [1, "y", True]}}})],
    ),
    Sample(
        FunctionGemma,
        "<start_function_call>call:get_weather{city:<escape>Oslo<escape>,days:3}<end_function_call>",
        [OSLO],
    ),
    Sample(FunctionGemma, "<start_function_call>call:get_time{}<end_function_call>", [TIME]),
    Sample(LlamaJson, '{"name": "get_weather", "parameters": {"city": "Paris"}}', [PARIS]),
    Sample(
        LlamaJson,
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}; '
        '{"name": "get_time", "parameters": {}}',
        [PARIS, TIME],
    ),
    Sample(
        LlamaJson,
        'Sure:\n{"name": "get_time", "parameters": {}}\n{"name": "Bob", "age": 3}',
        [TIME],
        content='Sure:{"name": "Bob", "age": 3}',
    ),
    Sample(LlamaJson, '<|python_tag|>get_weather.call(city="Paris")', [PARIS]),
    Sample(LlamaJson, '{"age": 3, "name": "get_time"}', [], content='{"age": 3, "name": "get_time"}'),
    Sample(ToldJson, '{"parameters": {"city": "Paris"}, "name": "get_weather"}', [PARIS]),
    Sample(
        Harmony,
        "<|channel|>analysis<|message|>Weather.<|end|><|start|>assistant<|channel|>commentary"
        ' to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        [PARIS],
        reasoning="Weather.",
    ),
    Sample(
        Harmony,
        " to=functions.get_time<|channel|>commentary json<|message|>{}<|call|>",
        [TIME],
    ),
    Sample(
        Harmony,
        "<|channel|>commentary<|message|>First the time.<|end|><|start|>assistant<|channel|>analysis<|message|>"
        "Hm<|end|><|start|>assistant<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>final"
        "<|message|>It is noon.<|return|>",
        [],
        content="First the time.\n\nIt is noon.",
        reasoning="Hm\n\nso",
    ),
    Sample(Harmony, "Just words.", [], content="Just words."),
    Sample(
        DeepSeekV3,
        "<think>\nSo.\n</think>\n\nOne moment.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>"
        'get_weather\n```json\n{"city": "Paris"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
        "<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [PARIS, TIME],
        content="One moment.",
        reasoning="So.",
    ),
    Sample(
        DeepSeek,
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [PARIS, TIME],
    ),
)
