"""The conversation with one live process of Gemini CLI: that of any ACP agent, but for the end of a run."""

from typing import ClassVar

from activities.agents.acp.conversation import AcpConversation


class GeminiConversation(AcpConversation):
    """See ports.Conversation."""

    _end_method: ClassVar[str] = "_steersman/end"
    """A cancel would take the turn out of the session (see transcript), with which another run may go on. This notes
    the end in the journal, and says nothing to Gemini CLI: its stdin is closed then.
    """
