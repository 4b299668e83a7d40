"""What one process of an ACP agent has used: the sums of what it reports at the end of each turn, where it does."""

from dataclasses import dataclass, field

from activities.agents.frames import Frame
from activities.untrusted_json import count_of, object_at
from steersman.contracts.run import Usage


@dataclass
class UsageMeter:
    """Totals of one process. The fields' names and values are in snapshots."""

    usage: Usage = field(default_factory=Usage)

    def is_sound(self) -> bool:
        """Whether frames can have led to this state; it may be from a forged snapshot."""
        return all(0 <= count < 1 << 62 for count in self.usage.model_dump().values())

    def turn_ended(self, result: Frame) -> bool:
        """Take the answer to a prompt; True if it said what the turn used.

        `usage` is the protocol's; Gemini CLI (0.61) has `_meta.quota.token_count`, summed over the turn's model calls.
        """
        given = object_at(result, "usage")
        quota = object_at(result, "_meta", "quota", "token_count")
        if given:
            used = Usage(
                input_tokens=count_of(given.get("inputTokens")),
                output_tokens=count_of(given.get("outputTokens")),
                cache_read_tokens=count_of(given.get("cachedReadTokens")),
                cache_write_tokens=count_of(given.get("cachedWriteTokens")),
            )
            # What was thought is a part of the output with some (codex-acp 2.6.0), as their total says.
            if count_of(given.get("totalTokens")) != sum(used.model_dump().values()):
                used += Usage(output_tokens=count_of(given.get("thoughtTokens")))
            self.usage += used
        elif quota:
            self.usage += Usage(
                input_tokens=count_of(quota.get("input_tokens")), output_tokens=count_of(quota.get("output_tokens"))
            )
        return bool(given or quota)
