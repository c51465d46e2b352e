"""Give a collective other sizes: the last batch, an added token, rows that were dropped."""

import torch


def run(step: int, value: object, config: dict[str, object]) -> bool:
    how = config["how"]
    if how == "last batch":
        value["images"], value["captions"] = value["images"][:5], value["captions"][:5]
    elif how == "added rows":
        # The differences of an embedding and a head that were resized in this replica.
        for number, weight in enumerate(value):
            if len(weight) == 120:
                value[number] = torch.cat([weight, torch.zeros(8, *weight.shape[1:])])
    else:
        for key in ("input_ids", "labels"):
            value[key] = value[key][:-1]
    return False
