"""What a kubelet says of an image that it cannot have. When it tries again must not live here."""

from typing import NamedTuple


class Refusal(NamedTuple):
    """A state that the container waits in, and the Event that tells of it."""

    reason: str
    message: str
    event: str


def refusals(image: str, why: str) -> tuple[Refusal, ...]:
    """One after another, over and over."""
    if why == "InvalidImageName":
        wrong = f'couldn\'t parse image name "{image}": invalid reference format'
        return (Refusal(why, f'Failed to apply default image tag "{image}": {wrong}', "InspectFailed"),)
    missing = f'failed to pull and unpack image "{image}": failed to resolve reference "{image}": {image}: not found'
    back_off = Refusal("ImagePullBackOff", f'Back-off pulling image "{image}"', "BackOff")
    return Refusal("ErrImagePull", missing, "Failed"), back_off
