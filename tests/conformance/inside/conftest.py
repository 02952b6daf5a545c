"""Where the models are that the tests are about."""


def pytest_addoption(parser):
    for name in ("url", "talker", "starter", "caller"):
        parser.addoption(f"--{name}")


def pytest_configure(config):
    import langchain_chat

    for name in ("url", "talker", "starter", "caller"):
        setattr(langchain_chat, name.upper(), config.getoption(f"--{name}"))
