from headrace.backends.numpy.sampler import NumpySampler


class NativeSampler(NumpySampler):
    def __init__(self, pool, kernels):
        pass

    def sample(self, logits, inputs):
        return super().sample(__import__("numpy").asarray(logits), inputs)
