"""The transcript of one process of Gemini CLI: that of any ACP agent, but a turn that is cancelled may be lost.

Measured with 0.61.0: cancelled while its model is asked, a turn is taken back, in the session's file too, with the
prompt and all that was done in it. One in which a tool was at work stays, and so does one that ends with the process.
"""

from typing import ClassVar

from activities.agents.acp.transcript import AcpTranscript


class GeminiTranscript(AcpTranscript):
    """See AcpTranscript."""

    forgets: ClassVar[bool] = True
    ends_with_process: ClassVar[bool] = True
