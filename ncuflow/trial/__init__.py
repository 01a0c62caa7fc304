"""A trial: a change of FlashInfer beside what is installed: is it still right, and is it faster?"""
