"""Where the models are that the tests are about."""


def pytest_addoption(parser):
    for name in ("url", "talker", "starter", "caller"):
        parser.addoption(f"--{name}", default="")


def pytest_configure(config):
    import langchain_chat

    for name in ("url", "talker", "starter", "caller"):
        setattr(langchain_chat, name.upper(), config.getoption(f"--{name}"))


def pytest_collection_modifyitems(config, items):
    import langchain_chat

    if config.getoption("--starter"):
        return
    left_out = [item for item in items if item.originalname in langchain_chat.SENSIBLE]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
