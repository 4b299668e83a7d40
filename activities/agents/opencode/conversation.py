"""The conversation with one live process of opencode: that of any ACP agent, but a prompt may join the turn."""

from activities.agents.acp.conversation import AcpConversation
from steersman.contracts.activities import OutgoingMessage, Settlement


class OpencodeConversation(AcpConversation):
    """See ports.Conversation."""

    async def _steer(self, message: OutgoingMessage) -> Settlement:
        """A prompt during a turn joins it at its next step; the plugin tells when the model has read it."""
        return await self._say_text(message)
