class EngineArgs:
    pass
