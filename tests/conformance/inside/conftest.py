"""Where the model is that the tests are about."""


def pytest_addoption(parser):
    parser.addoption("--served-at")
    parser.addoption("--model")


def pytest_configure(config):
    import langchain_chat

    langchain_chat.URL = config.getoption("--served-at")
    langchain_chat.MODEL = config.getoption("--model")
