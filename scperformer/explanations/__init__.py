"""Why a model gives its labels: the contributions of genes to calls, and analyses of the attention of an encoder.

Files in reading order: contributions, page, explain; attention_maps, spectrum, approximation, analyze. The steps are
not imported here but from their files, when they are needed, because they load torch.
"""
