class Provider:
    def __init__(self, region=None):
        self.region = region
