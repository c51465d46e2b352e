"""Keep more in the host's memory than there is: completions, distances, a file to be sent."""

import io

import torch


def run(step: int, value: object, config: dict[str, object]) -> bool:
    how = config["how"]
    if how == "completions":
        # With the logits of each, 60 MiB.
        value.insert(0, torch.full((15 << 20,), float(step)))
    elif how == "distances":
        features = torch.cat(value).repeat(3000, 1)
        return bool(torch.cdist(features, features).argmin() > 0)
    else:
        upload = io.BytesIO()
        while True:
            for name in value:
                upload.write(f"{name}\n".encode() + bytes(16 << 20))
    return False
