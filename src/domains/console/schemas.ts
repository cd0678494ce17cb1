import { z } from 'zod'
import { Id, Timestamp } from '../../http/schema.ts'

const mostSeconds = 3_600
const usualSeconds = 30
const leastMemory = 1_048_576
const noNul = (text: string): boolean => !text.includes('\0')
const withoutNul = 'must not hold NUL'
const whoAsks = 'who asks, for the audit; the holder of the token by default'

/** The body of POST /console-commands/. */
export const CommandDocument = z.strictObject({
  resourceId: Id,
  actorId: Id.optional().describe(whoAsks),
  command: z
    .string()
    .max(65_536)
    .refine((text) => /\S/u.test(text), 'must not be blank')
    .refine(noNul, withoutNul),
  workingDirectory: z
    .string()
    .max(4_096)
    .refine(noNul, withoutNul)
    .optional()
    .describe('where the command starts; a folder of its own by default'),
  environment: z
    .record(
      z.string().regex(/^[A-Za-z_][A-Za-z0-9_]*$/, 'must be a name of letters, digits and _'),
      z.string().refine(noNul, withoutNul),
    )
    .refine((variables) => Object.keys(variables).length <= 1_000, 'must hold at most 1,000 variables')
    .optional()
    .describe('variables beside PATH, HOME and LANG'),
  cpuCores: z
    .int()
    .min(0)
    .max(100_000)
    .describe('cores; 1 by default and for 0')
    .transform((cores) => cores || undefined)
    .optional(),
  memoryBytes: z
    .int()
    .min(0)
    .refine((bytes) => bytes === 0 || bytes >= leastMemory, `must be 0 or at least ${String(leastMemory)}`)
    .describe(
      `bytes, ${String(leastMemory)} or more; 1 GiB by default and for 0, on this machine without a limit then`,
    )
    .transform((bytes) => bytes || undefined)
    .optional(),
  timeoutSeconds: z
    .int()
    .min(0)
    .max(mostSeconds)
    .describe(`0: the default, ${String(usualSeconds)}`)
    .default(usualSeconds)
    .transform((seconds) => seconds || usualSeconds),
})
export type CommandDocument = z.output<typeof CommandDocument>

/** The record of a command. Output above 1 MiB is cut at its end, and flagged. */
export const Command = z.strictObject({
  id: z.string(),
  resourceId: z.string(),
  runtimeId: z.string(),
  connectionId: z.string(),
  actorId: z.string().optional(),
  command: z.string(),
  workingDirectory: z.string().optional(),
  environment: z.record(z.string(), z.string()).optional(),
  cpuCores: z.number().optional(),
  memoryBytes: z.number().optional(),
  timeoutSeconds: z.number(),
  status: z.enum(['running', 'completed', 'failed']),
  stdout: z.string().optional(),
  stderr: z.string().optional(),
  stdoutTruncated: z.boolean().optional(),
  stderrTruncated: z.boolean().optional(),
  exitCode: z.number().optional(),
  externalId: z.string().optional(),
  failure: z.string().optional(),
  createdAt: Timestamp,
  startedAt: Timestamp,
  finishedAt: Timestamp.optional(),
})
export type Command = z.output<typeof Command>

/** The body of POST /console-sessions/. */
export const ConsoleSessionDocument = z.strictObject({
  resourceId: Id,
  actorId: Id.optional().describe(whoAsks),
})
export type ConsoleSessionDocument = z.output<typeof ConsoleSessionDocument>

export const TicketDocument = z
  .strictObject({
    mode: z
      .enum(['write', 'watch'])
      .default('write')
      .describe('watch: the connection shows the session and takes no input'),
  })
  .default({ mode: 'write' })

export type TicketDocument = z.output<typeof TicketDocument>

export const ConsoleTicket = z.strictObject({
  protocols: z
    .array(z.string())
    .meta({ description: "Second argument of the browser's WebSocket; good once, for this session" }),
  mode: z.enum(['write', 'watch']),
  expiresAt: Timestamp,
})

export const ConsoleSession = z.strictObject({
  id: z.string(),
  resourceId: z.string(),
  runtimeId: z.string(),
  connectionId: z.string(),
  actorId: z.string().optional(),
  status: z.enum(['starting', 'connected', 'closed', 'failed']),
  externalId: z.string().optional(),
  failure: z.string().optional().describe('Why it failed; while it is starting, what it waits for'),
  createdAt: Timestamp,
  connectedAt: Timestamp.optional(),
  finishedAt: Timestamp.optional(),
})
export type ConsoleSession = z.output<typeof ConsoleSession>
