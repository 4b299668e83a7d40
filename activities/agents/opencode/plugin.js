// Loaded by opencode: tells in the stream of the Agent Client Protocol what the protocol leaves out. What each step has
// used, which messages the model has read, why its service is asked again. Texts are cut: the frames are for counting.
const TEXT = 4000

export const Steersman = async () => {
  const users = new Set()
  const begun = new Set() // answers that this process gives: a fork tells those of the past, too, as they ended
  const tell = (what, params) =>
    process.stdout.write(JSON.stringify({ jsonrpc: "2.0", method: `_steersman/${what}`, params }) + "\n")

  const failure = (error) => {
    const data = error?.data ?? {}
    const headers = data.responseHeaders ?? {}
    const after = Number(headers["retry-after-ms"]) / 1000 || Number(headers["retry-after"])
    return {
      name: error?.name,
      message: String(data.message ?? "").slice(0, TEXT),
      status: data.statusCode,
      retryAfter: after || undefined, // seconds
    }
  }

  const message = (info) => {
    if (info.role === "user") users.add(info.id)
    else if (info.role === "assistant") {
      if (!info.time?.completed) begun.add(info.id)
      const error = info.error ? failure(info.error) : undefined
      tell("reply", { sessionId: info.sessionID, id: info.id, to: info.parentID, error })
    }
  }

  const part = (each) => {
    const about = { sessionId: each.sessionID, message: each.messageID, id: each.id }
    if (each.type === "step-finish" && begun.has(each.messageID))
      tell("step", { ...about, tokens: each.tokens, cost: each.cost, reason: each.reason })
    else if (each.type === "text" && users.has(each.messageID) && !each.synthetic)
      tell("heard", { ...about, text: each.text.slice(0, TEXT) })
  }

  tell("loaded", {})
  return {
    // What commands of the agent have no business with.
    "shell.env": async (_, output) => {
      output.env.OPENCODE_SERVER_PASSWORD = output.env.OPENCODE_CONFIG_CONTENT = ""
      output.env.BUN_TMPDIR = process.env.TMPDIR || "/tmp" // as commands would have it without us
    },
    event: async ({ event }) => {
      const { type, properties } = event
      if (type === "message.updated") message(properties.info)
      else if (type === "message.part.updated") part(properties.part)
      else if (type === "session.error") tell("error", { sessionId: properties.sessionID, error: failure(properties.error) })
      else if (type === "session.status" && properties.status.type === "retry")
        tell("retry", { sessionId: properties.sessionID, ...properties.status })
    },
  }
}
