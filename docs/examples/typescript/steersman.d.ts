/** What goes over Steersman's wire. Made from docs/schemas.json: not to be changed by hand. */

export type AgentEvent =
  | InitEvent
  | MessageEvent
  | ToolUseEvent
  | ToolOutputEvent
  | ToolResultEvent
  | FileChangeEvent
  | PlanUpdateEvent
  | PermissionEvent
  | UsageEvent
  | ProgressEvent
  | RateLimitEvent
  | ErrorEvent
  | DoneEvent
  | CancelledEvent
  | FailedEvent;
export type JsonValue = unknown;
/**
 * The `type` of the ApplicationError that a failed run closes with.
 */
export type ErrorType =
  | "InvalidRequest"
  | "AgentFailed"
  | "AgentCrashed"
  | "RunTimedOut"
  | "BudgetExceeded"
  | "WorkspaceError"
  | "AgentNotInstalled"
  | "AuthenticationFailed"
  | "PlaceError"
  | "LoopFailed";
/**
 * Why a loop ended.
 */
export type StopReason =
  | "done"
  | "exit"
  | "iterations"
  | "cost"
  | "tokens"
  | "duration"
  | "no_progress"
  | "failures"
  | "rate_limit"
  | "verification_missing";

/**
 * The agent's session began, or was resumed.
 */
export interface InitEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "init";
  session_id?: string | null;
  model?: string | null;
  version?: string | null;
  tools?: string[];
}
/**
 * A text of the agent or to the agent. Where the agent streams, parts have `delta` true, and the whole follows.
 */
export interface MessageEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "message";
  role?: "assistant" | "user";
  kind?: "text" | "thinking";
  text: string;
  delta?: boolean;
  message_id?: string | null;
  parent_tool_id?: string | null;
}
/**
 * The agent uses a tool.
 */
export interface ToolUseEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "tool_use";
  id: string;
  name: string;
  input: {
    [k: string]: JsonValue;
  };
  parent_tool_id?: string | null;
}
/**
 * What a tool has put out since the last such event, while it works. Told as far as its agent tells it.
 *
 * One has at most MAX_TOOL_OUTPUT characters, those of a call together at most MAX_CALL_OUTPUT: a flood is told of in
 * part, ever less often; `truncated` says that this was the last of it. The result follows.
 */
export interface ToolOutputEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "tool_output";
  id: string;
  text: string;
  omitted?: boolean;
}
/**
 * The tool's result.
 */
export interface ToolResultEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "tool_result";
  id: string;
  name?: string | null;
  text: string;
  is_error?: boolean;
}
/**
 * A tool of the agent changed a file. What commands change is not reported.
 */
export interface FileChangeEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "file_change";
  path: string;
  change: "created" | "edited" | "deleted";
  tool_id?: string | null;
}
/**
 * The agent's plan now.
 */
export interface PlanUpdateEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "plan_update";
  items: PlanItem[];
}
/**
 * An item of the agent's own plan.
 */
export interface PlanItem {
  text: string;
  status: string;
}
/**
 * A tool needs an approval, or the approval was decided or withdrawn.
 */
export interface PermissionEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "permission";
  id: string;
  tool: string;
  tool_id?: string | null;
  input?: {
    [k: string]: JsonValue;
  };
  state: "asked" | "allowed" | "denied" | "withdrawn";
  message?: string | null;
}
/**
 * What the run has consumed so far, over all attempts.
 */
export interface UsageEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "usage";
  usage: Usage;
  cost_usd: number;
  turns: number;
}
/**
 * Tokens, by kind.
 */
export interface Usage {
  input_tokens?: number;
  output_tokens?: number;
  cache_read_tokens?: number;
  cache_write_tokens?: number;
}
/**
 * A step worth a line: of a sub-agent, a retry of the model, a resumed session, a message delivered.
 */
export interface ProgressEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "progress";
  text: string;
  data?: {
    [k: string]: JsonValue;
  };
}
/**
 * The model's provider limits the account.
 */
export interface RateLimitEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "rate_limit";
  status: string;
  resets_at?: string | null;
  limit?: string | null;
}
/**
 * An error after which the run goes on, or is about to fail.
 */
export interface ErrorEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  type: "error";
  message: string;
}
/**
 * Terminal: the run succeeded.
 */
export interface DoneEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  changes?: Changes | null;
  finalize?: Finalize | null;
  worktree?: Worktree | null;
  type: "done";
  text?: string;
  structured?: {
    [k: string]: unknown;
  };
  stop_reason?: string | null;
  stop_report?: StopReport | null;
}
/**
 * What a run changed in its workspace, a git work tree: its files after the last process held against those before
 * the first. Ignored files are left out, and so is what lies in the repository beside the workspace.
 */
export interface Changes {
  before: string;
  after?: string | null;
  late_s?: number;
  files?: number;
  insertions?: number;
  deletions?: number;
  error?: string | null;
}
/**
 * What became of the changes of a run that worked in a copy of its workspace.
 */
export interface Finalize {
  status: "none" | "succeeded" | "conflicted" | "failed";
  commit?: string | null;
  conflicts?: string[];
  unnamed_conflicts?: number;
  ref?: string | null;
  error?: string | null;
  lost?: boolean;
  sessions?: {
    [k: string]: string;
  };
  session_error?: string | null;
}
/**
 * The git worktree in which a run works. It stays after the run, with all that the agent has left there.
 */
export interface Worktree {
  branch: string;
  top: string;
  directory: string;
}
/**
 * What a stop found and did.
 *
 * "stopped": no process of the agent is left. "already_finished": there was none when the stop began. "unverified":
 * nobody could look (the host is gone), processes resisted, or a shim that was killed may have left some.
 */
export interface StopReport {
  outcome: "stopped" | "already_finished" | "unverified";
  phase:
    | "queued"
    | "carrying_out"
    | "preparing"
    | "running"
    | "waiting"
    | "stopping"
    | "carrying_back"
    | "finalizing"
    | "closed";
  how?: ("exited" | "terminated" | "killed") | null;
  processes?: number;
  took_ms?: number;
  left?: number[];
  reason?: string | null;
  place?: string | null;
}
/**
 * Terminal: the run was cancelled, or its workflow was terminated.
 */
export interface CancelledEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  changes?: Changes | null;
  finalize?: Finalize | null;
  worktree?: Worktree | null;
  type: "cancelled";
  stop_report?: StopReport | null;
  terminated?: boolean;
  reason?: string | null;
  by?: string | null;
}
/**
 * Terminal: the run failed.
 */
export interface FailedEvent {
  seq?: number;
  time: string;
  attempt?: number;
  truncated?: boolean;
  changes?: Changes | null;
  finalize?: Finalize | null;
  worktree?: Worktree | null;
  type: "failed";
  error: ErrorType;
  message: string;
  code?: string | null;
  stop_report?: StopReport | null;
}
/**
 * A tool that the agent wants to use and may use only if a person allows it.
 */
export interface Approval {
  id: string;
  tool: string;
  tool_id?: string | null;
  input: {
    [k: string]: JsonValue;
  };
  since: string;
  deadline?: string | null;
}
/**
 * A file, whole. Its data must be those of an image (PNG, JPEG, GIF, WebP) or of a text in UTF-8.
 */
export interface Attachment {
  name: string;
  data: string;
}
/**
 * What an agent supports; a request that needs more is refused.
 */
export interface Capabilities {
  steer: boolean;
  soft_steer?: boolean;
  interrupt: boolean;
  resume: boolean;
  fork?: boolean;
  structured_output: boolean;
  permissions: boolean;
  turns?: boolean;
  tokens?: boolean;
  cost?: boolean;
  images?: boolean;
}
/**
 * Result of carry_back, describe_workspace and retry_workspace.
 */
export interface CarriedBack {
  finalize: Finalize;
  changes?: Changes | null;
  waits?: boolean;
}
/**
 * A workspace as it was when it was copied for a run, and the copy.
 */
export interface CarriedWorkspace {
  top: string;
  repository: boolean;
  snapshot: string;
  files: string;
  directory: string;
}
/**
 * Files and state of a loop that can be restored. `usage` and `cost_usd` are those of this iteration alone.
 */
export interface Checkpoint {
  usage?: Usage1;
  cost_usd?: number;
  session_id?: string | null;
  schema_version?: number;
  number: number;
  kind: "baseline" | "iteration" | "pause" | "failure" | "rescue" | "end";
  time: string;
  iteration: number;
  run?: string | null;
  plan_version?: number;
  plan_hash?: string;
  phase?: string | null;
  commit?: string | null;
  head?: string | null;
  files?: string;
  items?: ItemCount | null;
  verification?: ("passed" | "failed" | "missing" | "timed_out") | null;
  took_s?: number;
  totals?: Totals;
  feedback?: string[];
  error?: string | null;
  note?: string | null;
  unfinished?: boolean | null;
}
/**
 * Tokens, by kind.
 */
export interface Usage1 {
  input_tokens?: number;
  output_tokens?: number;
  cache_read_tokens?: number;
  cache_write_tokens?: number;
}
/**
 * The number of items in each state.
 */
export interface ItemCount {
  open?: number;
  in_progress?: number;
  blocked?: number;
  needs_review?: number;
  closed?: number;
}
/**
 * What a loop has consumed since it was started, over continue-as-new, restarts and forks.
 */
export interface Totals {
  usage?: Usage2;
  cost_usd?: number;
  iterations?: number;
  active_s?: number;
}
/**
 * Tokens, by kind.
 */
export interface Usage2 {
  input_tokens?: number;
  output_tokens?: number;
  cache_read_tokens?: number;
  cache_write_tokens?: number;
}
/**
 * Result of the query `checkpoints`, oldest first.
 */
export interface CheckpointPage {
  checkpoints?: Checkpoint[];
  more?: boolean;
}
/**
 * Input of the query `checkpoints`; may be left out for the first page.
 */
export interface CheckpointQuery {
  after?: number;
  limit?: number;
}
/**
 * Input of the update `checkpoints`: which to delete, with their git refs. Exactly one field is given.
 */
export interface Cleanup {
  numbers?: number[];
  older_than_s?: number | null;
  oldest?: number | null;
  all?: boolean;
}
/**
 * Result of the update `checkpoints`.
 */
export interface CleanupReceipt {
  deleted?: number[];
  kept?: number;
}
/**
 * Input of `decide`: a person's decision on an approval.
 */
export interface Decision {
  id: string;
  decision: "allow" | "deny";
  message?: string | null;
  remember?: boolean;
}
/**
 * Result of `decide`.
 */
export interface DecisionReceipt {
  id: string;
  decision: "allow" | "deny";
  tool: string;
  input: {
    [k: string]: JsonValue;
  };
}
/**
 * Result of diff_run and diff_checkpoints.
 */
export interface Diff {
  stat?: string;
  patch?: string;
  truncated?: boolean;
  now?: boolean;
}
/**
 * When the loop is done: all conditions that are given hold after the same iteration.
 */
export interface Done {
  items?: Items | null;
  verify?: Verify | null;
  promise?: string | null;
}
/**
 * Where the items are listed: what there is to do, and what of it is done.
 */
export interface Items {
  kind: "checkboxes" | "beads" | "json" | "command";
  path?: string | null;
  ids?: string[];
  command?: (string | [string, ...string[]]) | null;
  allow_empty?: boolean;
}
/**
 * A command that verifies the work: exit code 0 passes. It runs in the workspace, as a run of its own.
 */
export interface Verify {
  command: string | [string, ...string[]];
  timeout_s?: number;
  every_iteration?: boolean;
}
/**
 * Input of end_run, a standalone activity on the host's queue.
 */
export interface EndRun {
  key: RunKey;
}
/**
 * What names a run on disk: its workflow id and the run id that its execution began with, which a reset keeps.
 */
export interface RunKey {
  run: string;
  execution: string;
}
/**
 * Result of read_events.
 */
export interface EventPage {
  events: AgentEvent[];
  ended: boolean;
  known?: boolean;
  next_end?: number | null;
  gzip?: string;
  last?: number | null;
}
/**
 * Input of `exit`: end the loop with status "exited"; files, checkpoints and the session stay.
 */
export interface Exit {
  reason?: string | null;
}
/**
 * An agent that goes on with a run where the one before it cannot.
 */
export interface Fallback {
  agent: string;
  model?: string | null;
  options?: {
    [k: string]: JsonValue;
  };
  command?: [string, ...string[]] | null;
}
/**
 * Input of `feedback`, for the next iteration that begins. Two with the same id are one.
 */
export interface Feedback {
  text: string;
  id?: string | null;
}
/**
 * A person's feedback for an iteration.
 */
export interface FeedbackNote {
  id: string;
  text: string;
  given_at: string;
  iteration?: number | null;
}
/**
 * Begin with another loop's checkpoint: its files, session (forked), items and totals.
 */
export interface FromCheckpoint {
  loop: string;
  number: number;
}
/**
 * The value of a variable of the worker's environment.
 */
export interface FromEnv {
  from_env: string;
}
/**
 * The contents of a file on the worker's machine, without a trailing newline.
 */
export interface FromFile {
  from_file: string;
}
/**
 * An agent's process, identified across reboots and pid reuse.
 */
export interface Handle {
  host: string;
  boot_id: string;
  pid: number;
  start_time: number;
  worker_queue?: string;
  place?: string | null;
}
/**
 * One thing to do.
 */
export interface Item {
  id: string;
  text?: string;
  state?: "open" | "in_progress" | "blocked" | "needs_review" | "closed";
  phase?: string | null;
  blocked_by?: string[];
}
/**
 * The items when they were last read.
 */
export interface ItemList {
  count?: ItemCount1;
  items?: Item[];
  digest?: string;
  error?: string | null;
}
/**
 * The number of items in each state.
 */
export interface ItemCount1 {
  open?: number;
  in_progress?: number;
  blocked?: number;
  needs_review?: number;
  closed?: number;
}
/**
 * In a pod of a Job, in a copy of the workspace. The operator allows cluster, namespace, image and all that is
 * named (--allow-kubernetes, --allow-pod).
 */
export interface KubernetesRuntime {
  kind: "kubernetes";
  image: string;
  namespace?: string | null;
  context?: string | null;
  service_account?: string | null;
  resources?: Resources;
  node_selector?: {
    /**
     * This interface was referenced by `undefined`'s JSON-Schema definition
     * via the `patternProperty` "^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$".
     */
    [k: string]: string;
  };
  /**
   * @maxItems 20
   */
  tolerations?:
    | []
    | [Toleration]
    | [Toleration, Toleration]
    | [Toleration, Toleration, Toleration]
    | [Toleration, Toleration, Toleration, Toleration]
    | [Toleration, Toleration, Toleration, Toleration, Toleration]
    | [Toleration, Toleration, Toleration, Toleration, Toleration, Toleration]
    | [Toleration, Toleration, Toleration, Toleration, Toleration, Toleration, Toleration]
    | [Toleration, Toleration, Toleration, Toleration, Toleration, Toleration, Toleration, Toleration]
    | [Toleration, Toleration, Toleration, Toleration, Toleration, Toleration, Toleration, Toleration, Toleration]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ]
    | [
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration,
        Toleration
      ];
  runtime_class?: string | null;
  /**
   * @maxItems 20
   */
  env_from_secrets?:
    | []
    | [string]
    | [string, string]
    | [string, string, string]
    | [string, string, string, string]
    | [string, string, string, string, string]
    | [string, string, string, string, string, string]
    | [string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string, string, string, string, string, string]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ];
  workspace_volume?: string | "emptyDir";
  /**
   * @maxItems 20
   */
  image_pull_secrets?:
    | []
    | [string]
    | [string, string]
    | [string, string, string]
    | [string, string, string, string]
    | [string, string, string, string, string]
    | [string, string, string, string, string, string]
    | [string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string, string, string, string, string]
    | [string, string, string, string, string, string, string, string, string, string, string, string, string, string]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ]
    | [
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string,
        string
      ];
  queue?: string | null;
  priority_class?: string | null;
  pool?: string | null;
  pod_template?: {
    [k: string]: JsonValue;
  };
  grace_s?: number;
  start_s?: number;
  backup_s?: number;
  python?: string;
}
/**
 * As in a container's `resources`: cpu, memory, ephemeral-storage, and what a cluster offers beside them.
 */
export interface Resources {
  requests?: {
    /**
     * This interface was referenced by `undefined`'s JSON-Schema definition
     * via the `patternProperty` "^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$".
     */
    [k: string]: string;
  };
  limits?: {
    /**
     * This interface was referenced by `undefined`'s JSON-Schema definition
     * via the `patternProperty` "^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$".
     */
    [k: string]: string;
  };
}
/**
 * As in a pod's `tolerations`.
 */
export interface Toleration {
  key?: string | null;
  operator?: "Equal" | "Exists";
  value?: string;
  effect?: ("NoSchedule" | "PreferNoSchedule" | "NoExecute") | null;
}
/**
 * The agent's last event, in one line.
 */
export interface LastEvent {
  seq: number;
  type: string;
  summary: string;
  time: string;
}
/**
 * Limits over all attempts of a run; they are enforced during a turn, too.
 */
export interface Limits {
  turns?: number | null;
  cost_usd?: number | null;
  tokens?: number | null;
  duration_s?: number | null;
  idle_s?: number | null;
  rate_limit_s?: number | null;
  approval_s?: number | null;
}
/**
 * Input of list_workspace_checkpoints, a standalone activity on the host's queue: at most `limit`, the newest.
 */
export interface ListWorkspaceCheckpoints {
  workspace: string;
  limit?: number;
}
/**
 * On the machine of the host that leads the run.
 */
export interface LocalRuntime {
  kind: "local";
}
/**
 * Limits over all iterations, continue-as-new and forks. Cost, tokens and durations end an iteration, too.
 */
export interface LoopLimits {
  iterations?: number;
  cost_usd?: number | null;
  tokens?: number | null;
  duration_s?: number | null;
  iteration_duration_s?: number | null;
  idle_s?: number | null;
  no_progress?: number;
  failures?: number;
}
/**
 * Result of every update that changes what the loop does, sent when that is done; of `pause` and `exit` at once.
 */
export interface LoopReceipt {
  status:
    | "running"
    | "waiting_for_decision"
    | "paused"
    | "waiting_rate_limit"
    | "verifying"
    | "completed"
    | "exited"
    | "failed"
    | "cancelled";
  iteration: number;
  note?: string;
  id?: string | null;
  plan_version?: number | null;
  checkpoint?: number | null;
  rescue?: number | null;
  wakes_at?: string | null;
}
/**
 * Iterations of one agent on one plan. JSON on the wire; unknown fields are refused.
 */
export interface LoopRequest {
  run: RunRequest;
  plan: string | PlanFile;
  prompt?: string | null;
  done: Done;
  session?: ("continue" | "fresh") | null;
  mode?: "checkpoint" | "batch" | "autonomous";
  batch_size?: number;
  limits?: LoopLimits1;
  pause_between_s?: number;
  rate_limit?: "wait" | "stop";
  from_checkpoint?: FromCheckpoint | null;
}
/**
 * One run of one agent. JSON on the wire; unknown fields are refused.
 */
export interface RunRequest {
  agent: string;
  prompt?: string;
  /**
   * @maxItems 20
   */
  attachments?:
    | []
    | [Attachment]
    | [Attachment, Attachment]
    | [Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ];
  workspace: Workspace;
  runtime?: LocalRuntime | SshRuntime | KubernetesRuntime;
  model?: string | null;
  session?: string | null;
  fork_session?: boolean;
  system_prompt?: string | null;
  permissions?: Permissions;
  output_schema?: {
    [k: string]: JsonValue;
  } | null;
  env?: {
    [k: string]: string | FromEnv | FromFile;
  };
  limits?: Limits1;
  stop?: RequestedStopTimes;
  lease_s?: number;
  labels?: {
    [k: string]: string;
  };
  options?: {
    [k: string]: JsonValue;
  };
  command?: [string, ...string[]] | null;
  home?: "user" | "isolated";
  /**
   * @maxItems 5
   */
  fallback?:
    | []
    | [Fallback]
    | [Fallback, Fallback]
    | [Fallback, Fallback, Fallback]
    | [Fallback, Fallback, Fallback, Fallback]
    | [Fallback, Fallback, Fallback, Fallback, Fallback];
  fallback_on?: ("authentication" | "rate_limit" | "not_installed" | "overloaded")[];
  /**
   * @maxItems 4
   */
  notify?: [] | [Webhook] | [Webhook, Webhook] | [Webhook, Webhook, Webhook] | [Webhook, Webhook, Webhook, Webhook];
}
/**
 * Where the agent works: a directory that exists on a worker's host.
 *
 * `host`: which one leads the run (see `steer doctor`); by default whichever takes it.
 * `on_overlap`: what becomes of the run where another one has the directory, one inside it or one around it.
 */
export interface Workspace {
  path: string;
  host?: string | null;
  on_overlap?: "reject" | "queue" | "interrupt" | "steer" | "rollback";
  isolation?: "none" | "copy";
  on_gate?: "reject" | "wait";
  /**
   * @maxItems 100
   */
  include?: string[];
  reuse?: boolean;
  worktree?: string | null;
}
/**
 * On a machine that the leader reaches by ssh, in a copy of the workspace.
 *
 * The ssh config of the worker's user counts for all that is not given; the operator allows the machine (--allow-ssh).
 */
export interface SshRuntime {
  kind: "ssh";
  address: string;
  user?: string | null;
  port?: number | null;
  identity_file?: string | null;
  directory?: string | null;
  python?: string;
}
/**
 * What the agent may do unapproved. `allow` and `deny`: tools or the agent's own rules, e.g. `Bash(git *)`.
 */
export interface Permissions {
  mode?: "read_only" | "ask" | "accept_edits" | "full";
  /**
   * @maxItems 1000
   */
  allow?: string[];
  /**
   * @maxItems 1000
   */
  deny?: string[];
}
/**
 * Limits over all attempts of a run; they are enforced during a turn, too.
 */
export interface Limits1 {
  turns?: number | null;
  cost_usd?: number | null;
  tokens?: number | null;
  duration_s?: number | null;
  idle_s?: number | null;
  rate_limit_s?: number | null;
  approval_s?: number | null;
}
/**
 * When a stop sends SIGTERM and SIGKILL, in seconds after it was requested; null: the agent's own times.
 */
export interface RequestedStopTimes {
  terminate_after_s?: number | null;
  kill_after_s?: number | null;
}
/**
 * Who is told of a run. The operator says which addresses a request may name (`--allow-webhook`).
 */
export interface Webhook {
  url: string | FromEnv;
  /**
   * @minItems 1
   * @maxItems 5
   */
  on?:
    | ["approval" | "decision" | "end" | "budget" | "waiting"]
    | ["approval" | "decision" | "end" | "budget" | "waiting", "approval" | "decision" | "end" | "budget" | "waiting"]
    | [
        "approval" | "decision" | "end" | "budget" | "waiting",
        "approval" | "decision" | "end" | "budget" | "waiting",
        "approval" | "decision" | "end" | "budget" | "waiting"
      ]
    | [
        "approval" | "decision" | "end" | "budget" | "waiting",
        "approval" | "decision" | "end" | "budget" | "waiting",
        "approval" | "decision" | "end" | "budget" | "waiting",
        "approval" | "decision" | "end" | "budget" | "waiting"
      ]
    | [
        "approval" | "decision" | "end" | "budget" | "waiting",
        "approval" | "decision" | "end" | "budget" | "waiting",
        "approval" | "decision" | "end" | "budget" | "waiting",
        "approval" | "decision" | "end" | "budget" | "waiting",
        "approval" | "decision" | "end" | "budget" | "waiting"
      ];
  format?: "json" | "slack";
  secret?: FromEnv | null;
  decides?: boolean;
}
/**
 * A Markdown file in the workspace, or a directory of phases (`01-*.md`, `02-*.md`).
 */
export interface PlanFile {
  path: string;
  phase?: string | null;
}
/**
 * Limits over all iterations, continue-as-new and forks. Cost, tokens and durations end an iteration, too.
 */
export interface LoopLimits1 {
  iterations?: number;
  cost_usd?: number | null;
  tokens?: number | null;
  duration_s?: number | null;
  iteration_duration_s?: number | null;
  idle_s?: number | null;
  no_progress?: number;
  failures?: number;
}
/**
 * The result of a loop; of a failed loop, the first detail of its failure. `usage` and `cost_usd` are totals.
 */
export interface LoopResult {
  usage?: Usage3;
  cost_usd?: number;
  session_id?: string | null;
  status: "completed" | "exited" | "failed" | "cancelled";
  stop_reason?: StopReason | null;
  iterations?: number;
  checkpoints?: number;
  last_checkpoint?: Checkpoint | null;
  verification?: Verification | null;
  items?: ItemCount | null;
  text?: string;
  started_at: string;
  ended_at: string;
  error?: string | null;
  reason?: string | null;
}
/**
 * Tokens, by kind.
 */
export interface Usage3 {
  input_tokens?: number;
  output_tokens?: number;
  cache_read_tokens?: number;
  cache_write_tokens?: number;
}
/**
 * One run of the verification command.
 */
export interface Verification {
  status: "passed" | "failed" | "missing" | "timed_out";
  command: string;
  exit_code?: number | null;
  output?: string;
  run?: string | null;
  iteration: number;
  time: string;
}
/**
 * The answer of a loop's `state` query, while the loop is open and after it has closed.
 *
 * `usage` and `cost_usd` are those of the last iteration that ended.
 */
export interface LoopState {
  usage?: Usage4;
  cost_usd?: number;
  session_id?: string | null;
  status?:
    | "running"
    | "waiting_for_decision"
    | "paused"
    | "waiting_rate_limit"
    | "verifying"
    | "completed"
    | "exited"
    | "failed"
    | "cancelled";
  agent?: string | null;
  capabilities?: Capabilities | null;
  workspace?: string | null;
  host?: string | null;
  labels?: {
    [k: string]: string;
  };
  mode?: "checkpoint" | "batch" | "autonomous";
  batch_size?: number;
  limits?: LoopLimits2;
  iteration?: number;
  run?: string | null;
  plan?: PlanVersion | null;
  plan_versions?: number;
  phase?: string | null;
  phases?: Phase[];
  items?: ItemList | null;
  feedback?: FeedbackNote[];
  feedback_consumed?: FeedbackNote[];
  totals?: Totals1;
  checkpoints?: Checkpoint[];
  checkpoints_total?: number;
  verification?: Verification | null;
  no_progress?: number;
  failures?: number;
  last_error?: string | null;
  waits_for?: string | null;
  wakes_at?: string | null;
  workspace_held_by?: WorkspaceHolder[];
  stop_reason?: StopReason | null;
  reason?: string | null;
  started_at?: string | null;
  as_of?: string | null;
  execution?: string | null;
}
/**
 * Tokens, by kind.
 */
export interface Usage4 {
  input_tokens?: number;
  output_tokens?: number;
  cache_read_tokens?: number;
  cache_write_tokens?: number;
}
/**
 * Limits over all iterations, continue-as-new and forks. Cost, tokens and durations end an iteration, too.
 */
export interface LoopLimits2 {
  iterations?: number;
  cost_usd?: number | null;
  tokens?: number | null;
  duration_s?: number | null;
  iteration_duration_s?: number | null;
  idle_s?: number | null;
  no_progress?: number;
  failures?: number;
}
/**
 * One version of the plan.
 */
export interface PlanVersion {
  number: number;
  hash: string;
  since: string;
  path?: string | null;
  phase?: string | null;
  text?: string | null;
  prompt?: string | null;
}
/**
 * One file of a plan that is a directory.
 */
export interface Phase {
  name: string;
  title?: string;
  state?: "open" | "in_progress" | "blocked" | "needs_review" | "closed";
  depends_on?: string[];
}
/**
 * What a loop has consumed since it was started, over continue-as-new, restarts and forks.
 */
export interface Totals1 {
  usage?: Usage2;
  cost_usd?: number;
  iterations?: number;
  active_s?: number;
}
/**
 * A run or loop that has a workspace, or that waits for one.
 */
export interface WorkspaceHolder {
  kind?: "run" | "loop" | "workflow";
  id?: string | null;
  path: string;
  waits?: boolean;
  on_overlap?: "reject" | "queue" | "interrupt" | "steer" | "rollback";
  since: string;
}
/**
 * The checkpoints of a loop before and after one of its runs; `newer` None: there is none after it.
 */
export interface LoopStep {
  loop: string;
  older: number;
  newer?: number | null;
}
/**
 * Input of `steer` and `interrupt`. Two with the same id are one message.
 */
export interface Message {
  text?: string | null;
  id?: string | null;
  reason?: string | null;
  /**
   * @maxItems 20
   */
  attachments?:
    | []
    | [Attachment]
    | [Attachment, Attachment]
    | [Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment]
    | [Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment, Attachment]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ]
    | [
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment,
        Attachment
      ];
  end?: boolean;
}
/**
 * Result of `steer` and `interrupt`.
 */
export interface MessageReceipt {
  id: string;
  state: "queued" | "delivered" | "acknowledged" | "rejected" | "too_late" | "unverified";
  how?: string | null;
  latency_ms: number;
}
/**
 * A message to the agent and its delivery.
 */
export interface MessageRecord {
  id: string;
  kind: "steer" | "interrupt";
  text?: string | null;
  reason?: string | null;
  attachments?: string[];
  state?: "queued" | "delivered" | "acknowledged" | "rejected" | "too_late" | "unverified";
  how?: string | null;
  received_at: string;
  delivered_at?: string | null;
  settled_at?: string | null;
}
/**
 * The body of format "json". Of a run, one of `approval`, `decision`, `budget` and `result`: that which `type`
 * names (`result` of "end"). Of a loop, which `run` is the id of then, `loop`, and `budget` or `result`.
 */
export interface Notice {
  type: "approval" | "decision" | "end" | "budget" | "waiting";
  run: string;
  execution: string;
  time: string;
  agent: string;
  workspace: string;
  labels?: {
    [k: string]: string;
  };
  approval?: NoticeApproval | null;
  decision?: NoticeDecision | null;
  budget?: NoticeBudget | null;
  result?: NoticeResult | null;
  loop?: NoticeLoop | null;
}
/**
 * What the agent asks.
 */
export interface NoticeApproval {
  id: string;
  tool: string;
  input: {
    [k: string]: JsonValue;
  };
  deadline?: string | null;
}
/**
 * What was decided, or that nobody did in time (`decision` is "deny" then).
 */
export interface NoticeDecision {
  id: string;
  tool: string;
  decision: "allow" | "deny";
  message?: string | null;
}
/**
 * A limit of which most is spent.
 */
export interface NoticeBudget {
  of: "cost_usd" | "tokens" | "turns" | "duration_s";
  limit: number;
  spent: number;
}
/**
 * How the run ended. `text` has at most 10,000 characters.
 */
export interface NoticeResult {
  status: string;
  text?: string;
  error?: string | null;
  cost_usd?: number;
  turns?: number;
  session_id?: string | null;
}
/**
 * A loop that waits for a person, or has ended.
 */
export interface NoticeLoop {
  status: string;
  iteration: number;
  waits_for?: string | null;
}
/**
 * Input of `pause`. `now`: end the agent's turn at once; else the iteration ends first.
 */
export interface Pause {
  now?: boolean;
  reason?: string | null;
}
/**
 * What the agent may do unapproved. `allow` and `deny`: tools or the agent's own rules, e.g. `Bash(git *)`.
 */
export interface Permissions1 {
  mode?: "read_only" | "ask" | "accept_edits" | "full";
  /**
   * @maxItems 1000
   */
  allow?: string[];
  /**
   * @maxItems 1000
   */
  deny?: string[];
}
/**
 * Input of prune_host: remove the state of runs and loops that closed more than `keep_days` days ago.
 */
export interface PruneInput {
  keep_days: number;
  dry_run?: boolean;
}
/**
 * Input of read_events, a standalone activity on the host's queue.
 */
export interface ReadEvents {
  key: RunKey;
  after?: number;
  wait_s?: number;
  max_bytes?: number;
  store?: string;
  gzip?: boolean;
}
/**
 * Input of `remove_feedback`.
 */
export interface RemoveFeedback {
  id: string;
}
/**
 * When a stop sends SIGTERM and SIGKILL, in seconds after it was requested; null: the agent's own times.
 */
export interface RequestedStopTimes1 {
  terminate_after_s?: number | null;
  kill_after_s?: number | null;
}
/**
 * As in a container's `resources`: cpu, memory, ephemeral-storage, and what a cluster offers beside them.
 */
export interface Resources1 {
  requests?: {
    /**
     * This interface was referenced by `undefined`'s JSON-Schema definition
     * via the `patternProperty` "^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$".
     */
    [k: string]: string;
  };
  limits?: {
    /**
     * This interface was referenced by `undefined`'s JSON-Schema definition
     * via the `patternProperty` "^[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?$".
     */
    [k: string]: string;
  };
}
/**
 * Input of `restart`: start over from the beginning of the loop, or of one iteration.
 */
export interface Restart {
  from?: "plan" | "iteration";
  number?: number | null;
  files?: boolean;
}
/**
 * Input of `resume`: continue after a pause, or take the decision that the loop waits for.
 */
export interface Resume {
  mode?: ("checkpoint" | "batch" | "autonomous") | null;
  text?: string | null;
  session?: "fresh" | null;
}
/**
 * Input of `revise`: a new version of the plan, of the prompt's template, or both.
 */
export interface Revise {
  plan?: (string | PlanFile) | null;
  prompt?: string | null;
}
/**
 * Input of `rollback`. The loop is paused afterwards.
 */
export interface Rollback {
  checkpoint: number;
}
/**
 * Input of diff_run, a standalone activity on the host's queue: a run's two commits of its workspace's files.
 */
export interface RunDiffInput {
  key: RunKey;
  workspace: string;
  before: string;
  after?: string | null;
  max_bytes?: number;
  step?: LoopStep | null;
}
/**
 * Result of end_run.
 */
export interface RunEnd {
  event?: (DoneEvent | CancelledEvent | FailedEvent) | null;
  known?: boolean;
}
/**
 * What one agent did of a run with `fallback`.
 */
export interface RunPart {
  usage?: Usage5;
  cost_usd?: number;
  session_id?: string | null;
  agent: string;
  turns?: number;
  model?: string | null;
  attempts?: number;
  error?: string | null;
}
/**
 * Tokens, by kind.
 */
export interface Usage5 {
  input_tokens?: number;
  output_tokens?: number;
  cache_read_tokens?: number;
  cache_write_tokens?: number;
}
/**
 * The result of a run; of a failed run, the first detail of its failure.
 */
export interface RunResult {
  usage?: Usage6;
  cost_usd?: number;
  session_id?: string | null;
  turns?: number;
  own_session_id?: string | null;
  status: "succeeded" | "failed" | "cancelled";
  part?: number;
  text?: string;
  structured?: {
    [k: string]: unknown;
  };
  stop_reason?: string | null;
  started_at: string;
  ended_at: string;
  attempts?: number;
  messages_delivered?: number;
  error?: string | null;
  facts?: {
    [k: string]: JsonValue;
  };
  code?: string | null;
  stop_report?: StopReport | null;
  changes?: Changes | null;
  finalize?: Finalize | null;
  worktree?: Worktree | null;
  parts?: RunPart[];
}
/**
 * Tokens, by kind.
 */
export interface Usage6 {
  input_tokens?: number;
  output_tokens?: number;
  cache_read_tokens?: number;
  cache_write_tokens?: number;
}
/**
 * The answer of the `state` query, while the run is open and after it has closed.
 */
export interface RunState {
  usage?: Usage7;
  cost_usd?: number;
  session_id?: string | null;
  turns?: number;
  own_session_id?: string | null;
  phase?:
    | "queued"
    | "carrying_out"
    | "preparing"
    | "running"
    | "waiting"
    | "stopping"
    | "carrying_back"
    | "finalizing"
    | "closed";
  agent?: string | null;
  capabilities?: Capabilities | null;
  handle?: Handle | null;
  attempt?: number;
  part?: number;
  messages?: MessageRecord[];
  messages_wait?: string | null;
  approvals?: Approval[];
  awaits_message?: boolean;
  workspace_held_by?: WorkspaceHolder[];
  stop_report?: StopReport | null;
  last_event?: LastEvent | null;
  workspace?: string | null;
  labels?: {
    [k: string]: string;
  };
  host?: string | null;
  store?: string;
  execution?: string | null;
  error?: string | null;
  closed_as?: ("succeeded" | "failed" | "cancelled" | "terminated" | "timed_out") | null;
  baseline?: string | null;
  changes?: Changes | null;
  carried?: CarriedWorkspace | null;
  finalize?: Finalize | null;
  worktree?: Worktree | null;
}
/**
 * Tokens, by kind.
 */
export interface Usage7 {
  input_tokens?: number;
  output_tokens?: number;
  cache_read_tokens?: number;
  cache_write_tokens?: number;
}
/**
 * Input of `set_limits`: limits that are given are changed; 0 removes one, `iterations` excepted.
 */
export interface SetLimits {
  iterations?: number | null;
  cost_usd?: number | null;
  tokens?: number | null;
  duration_s?: number | null;
  iteration_duration_s?: number | null;
  idle_s?: number | null;
  no_progress?: number | null;
  failures?: number | null;
}
/**
 * Result of sweep_host and prune_host: ids of the runs that were stopped, and of the runs and loops pruned.
 */
export interface Swept {
  stopped?: string[];
  pruned?: string[];
  bytes_freed?: number;
}
/**
 * What a loop has consumed since it was started, over continue-as-new, restarts and forks.
 */
export interface Totals2 {
  usage?: Usage2;
  cost_usd?: number;
  iterations?: number;
  active_s?: number;
}
/**
 * Input of undo_run, a standalone activity on the host's queue.
 */
export interface UndoInput {
  key: RunKey;
  workspace: string;
  before: string;
  after: string;
  step?: LoopStep | null;
}
/**
 * Result of undo_run.
 */
export interface Undone {
  files?: number;
  conflicts?: string[];
  unnamed_conflicts?: number;
  rescue?: string;
  ref?: string;
}
/**
 * A commit of a workspace's files that is kept in its repository, by what its ref says. An agent can write refs.
 */
export interface WorkspaceCheckpoint {
  kind: "baseline" | "end" | "rescue" | "conflict" | "loop";
  run?: string | null;
  loop?: string | null;
  number?: number | null;
  time?: string | null;
  commit: string;
  ref?: string | null;
  files?: number | null;
  insertions?: number | null;
  deletions?: number | null;
}
/**
 * Result of list_workspace_checkpoints.
 */
export interface WorkspaceCheckpointPage {
  repository: string;
  total: number;
  checkpoints?: WorkspaceCheckpoint[];
}
/**
 * Result of list_workspaces: those who have a workspace on the host, then those who wait, in their order. The runs
 * of a loop work under its hold, and are not named.
 */
export interface Workspaces {
  holders?: WorkspaceHolder[];
}
