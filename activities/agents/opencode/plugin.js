// Loaded by opencode: tells in the stream of the Agent Client Protocol what the protocol leaves out. What each step has
// used, which messages the model has read, why its service is asked again. Texts are cut: the frames are for counting.
// And it asks there what a subagent asks, which opencode asks nobody, and for which the subagent waits for ever.
const TEXT = 4000
const NEWLINE = 10
const KINDS = {
  bash: "execute", shell: "execute", webfetch: "fetch", grep: "search", glob: "search", read: "read", task: "think",
  edit: "edit", write: "edit", patch: "edit", apply_patch: "edit",
} // as opencode has them for its own session
const OPTIONS = [
  { optionId: "once", kind: "allow_once", name: "Allow once" },
  { optionId: "always", kind: "allow_always", name: "Always allow" },
  { optionId: "reject", kind: "reject_once", name: "Reject" },
]

export const Steersman = async ({ client }) => {
  const users = new Set()
  const begun = new Set() // answers that this process gives: a fork tells those of the past, too, as they ended
  const replies = new Map() // of those, the ones of which nothing has come: an interrupt may be before the model is asked
  const asked = new Map() // unanswered questions of subagents: id -> session
  const write = (frame) => process.stdout.write(JSON.stringify({ jsonrpc: "2.0", ...frame }) + "\n")
  const tell = (what, params) => write({ method: `_steersman/${what}`, params })

  const ask = async ({ id, sessionID, permission, patterns, metadata, tool }) => {
    if (!listens) process.stdin.on("data", read) // not before opencode reads there, which would miss what has come
    listens = true
    asked.set(id, sessionID)
    const session = await client.session.get({ path: { id: sessionID } })
    if (!session.data?.parentID) asked.delete(id) // opencode asks that itself
    if (!asked.has(id)) return
    const title = `${permission}: ${patterns.join(", ")}`
    const kind = KINDS[permission] ?? "other"
    const toolCall = { toolCallId: tool?.callID ?? id, status: "pending", title, kind, rawInput: metadata }
    write({ id, method: "session/request_permission", params: { sessionId: sessionID, toolCall, options: OPTIONS } })
  }

  const answer = ({ id, method, result }) => {
    if (method !== undefined || !asked.has(id)) return
    const path = { id: asked.get(id), permissionID: id }
    asked.delete(id)
    const response = result?.outcome?.optionId ?? "reject"
    return client.postSessionIdPermissionsPermissionId({ path, body: { response } })
  }

  let listens = false
  let rest = []
  const read = (data) => {
    rest.push(data)
    if (!data.includes(NEWLINE)) return
    const lines = Buffer.concat(rest).toString().split("\n")
    rest = [Buffer.from(lines.pop())]
    for (const line of lines) if (asked.size && line.includes('"id": "per_')) answer(JSON.parse(line))
  }

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
    else if (info.role === "assistant" && !info.time?.completed && !begun.has(info.id)) {
      begun.add(info.id)
      replies.set(info.id, { sessionId: info.sessionID, id: info.id, to: info.parentID })
    }
  }

  const part = (each) => {
    if (replies.has(each.messageID)) tell("reply", replies.get(each.messageID))
    replies.delete(each.messageID)
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
      else if (type === "permission.asked") await ask(properties)
      else if (type === "permission.replied" && asked.delete(properties.requestID))
        write({ method: "$/cancel_request", params: { requestId: properties.requestID } })
    },
  }
}
