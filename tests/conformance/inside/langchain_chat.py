"""LangChain's standard tests of chat models, through its integrations of OpenAI and Anthropic."""

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests

URL = MODEL = ""


class Common(ChatModelIntegrationTests):
    @property
    def has_tool_choice(self):
        return True

    @property
    def supports_image_inputs(self):
        return False


class TestOpenAI(Common):
    @property
    def chat_model_class(self):
        return ChatOpenAI

    @property
    def chat_model_params(self):
        return {
            "model": MODEL,
            "base_url": f"{URL}/v1",
            "api_key": "none",
            "temperature": 0,
            "max_tokens": 200,
            "stream_usage": True,
        }


class TestAnthropic(Common):
    @property
    def chat_model_class(self):
        return ChatAnthropic

    @property
    def chat_model_params(self):
        return {"model": MODEL, "base_url": URL, "api_key": "none", "max_tokens": 200}
