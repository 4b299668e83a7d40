/** Starts a run, says something into its turn and prints its answer: node run.js WORKSPACE PROMPT */
import { Client, Connection, WorkflowFailedError } from "@temporalio/client";
import type { AgentEvent, Message, MessageReceipt, RunRequest, RunResult, RunState } from "./steersman";

/** What a run is to a client: its arguments and its result. */
type AgentRun = (request: RunRequest) => Promise<RunResult>;

async function main(workspace: string, prompt: string): Promise<void> {
  const connection = await Connection.connect({ address: process.env.TEMPORAL_ADDRESS ?? "127.0.0.1:7233" });
  const client = new Client({ connection, namespace: process.env.TEMPORAL_NAMESPACE ?? "default" });
  const run = await client.workflow.start<AgentRun>("AgentRun", {
    taskQueue: "steersman",
    workflowId: `typescript-${process.pid}`,
    args: [{ agent: "claude", prompt, workspace: { path: workspace }, limits: { cost_usd: 2 } }],
  });
  const message: Message = { text: "Leave the slow tests out", id: "slow-tests" };
  const receipt = await run.executeUpdate<MessageReceipt, [Message]>("steer", { args: [message] });
  console.log(`${receipt.id} is ${receipt.state}`);
  const state = await run.query<RunState>("state");
  console.log(`phase ${state.phase}`);
  try {
    const result = await run.result();
    console.log(`${result.status}: ${result.text}`);
  } catch (error) {
    if (!(error instanceof WorkflowFailedError)) throw error;
    console.log(`failed: ${error.cause?.message}`);
  } finally {
    await connection.close();
  }
}

/** Events narrow by their type. */
export function line(event: AgentEvent): string {
  switch (event.type) {
    case "tool_use":
      return event.name;
    case "message":
      return event.text;
    case "failed":
      return `${event.error}: ${event.message}`;
    default:
      return event.type;
  }
}

const [workspace = process.cwd(), prompt = "Run the tests"] = process.argv.slice(2);
main(workspace, prompt).catch((error: unknown) => {
  console.error(error);
  process.exitCode = 1;
});
