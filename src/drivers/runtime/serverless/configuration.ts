import { z } from 'zod'
import { DriverError } from '../contract/driver.ts'

const mebibyte = 1024 * 1024

const seconds = z.number().positive().max(1e9)
const webUrl = z.url({
  protocol: /^https?$/,
  error: ({ input }) =>
    input === undefined
      ? 'is missing: the URL at which the function is called'
      : 'must be an http or https URL',
})

const Configuration = z
  .looseObject({
    /**
     * The function itself (`http`), the gateway (`openfaas`), or the service (`lambda`:
     * https://lambda.REGION.amazonaws.com).
     */
    endpoint: webUrl.refine(
      (url) => !/^https?:\/\/[^/]*@/.test(url),
      'must not hold a user or password; name a credential in credentialRef',
    ),
    /** `http`: functions-framework, Knative, Cloud Run and every other endpoint for a POST. */
    shape: z.enum(['http', 'openfaas', 'lambda']).default('http'),
    function: z
      .string()
      .regex(/^[\w:.-]{1,170}$/, 'must be 1 to 170 letters, digits, _ : . and -')
      .optional(),
    region: z
      .string()
      .regex(/^[a-z0-9-]{1,40}$/, 'must be a region, as eu-central-1')
      .optional(),
    credentialRef: z.string().min(1).optional(),
    /**
     * PEM of the authority that signed the endpoint's certificate, where this machine does not know
     * it.
     */
    certificateAuthority: z.string().min(1).optional(),
    mode: z.enum(['sync', 'callback', 'poll']).default('sync'),
    delivery: z.enum(['inline', 'reference']).default('inline'),
    /** The URL by which functions reach this service, with the prefix of its API. */
    publicBaseUrl: webUrl.optional(),
    payloadLimitBytes: z
      .int()
      .min(1024)
      .max(1024 * mebibyte)
      .optional(),
    answerLimitBytes: z
      .int()
      .min(1024)
      .max(100 * mebibyte)
      .optional(),
    timeLimitSeconds: seconds.optional(),
    memoryLimitBytes: z.int().min(1).optional(),
    /**
     * How long the platform's own queue may hold a call before it begins; applies where calls are
     * asynchronous.
     */
    queueSeconds: z.number().min(0).max(1e6).default(300),
    /** Calls under way at once. */
    concurrency: z.int().min(1).max(10_000).default(200),
    /** Whether a name may be called again after its answer was lost. */
    idempotent: z.boolean().default(true),
    outputs: z.enum(['changed', 'expected']).default('changed'),
    /** Failures (5xx, a crash of the function) of one name before it is given up. */
    retries: z.int().min(0).max(100).default(5),
    /** First pause between two polls, doubled up to ten times as much. */
    pollSeconds: z.number().min(0.05).max(600).default(0.5),
  })
  .superRefine((given, context) => {
    const miss = (path: string, message: string): void =>
      context.addIssue({ code: 'custom', path: [path], message })
    if (given.shape !== 'http' && given.function === undefined)
      miss('function', `is missing: with shape ${given.shape} it is the function's name`)
    if (given.shape === 'lambda' && given.region === undefined)
      miss('region', 'is missing: requests to lambda are signed for a region')
    if (given.shape === 'lambda' && given.credentialRef === undefined)
      miss(
        'credentialRef',
        'is missing: requests to lambda are signed with an access key; name a cloud credential of provider aws',
      )
    if (given.publicBaseUrl !== undefined) return
    if (given.mode === 'callback')
      miss('publicBaseUrl', 'is missing: with mode callback the function has to reach this service')
    if (given.delivery === 'reference')
      miss('publicBaseUrl', 'is missing: with delivery reference the function has to reach this service')
  })
  .transform((given) => ({
    ...given,
    // AWS' limits (6 MiB, 256 KiB for events, 15 min), and the usual limits of Cloud Run and
    // Knative for the others.
    payloadLimitBytes:
      given.payloadLimitBytes ??
      (given.shape === 'lambda' ? (given.mode === 'sync' ? 6 * mebibyte : 256 * 1024) : 32 * mebibyte),
    answerLimitBytes: given.answerLimitBytes ?? (given.shape === 'lambda' ? 6 * mebibyte : 32 * mebibyte),
    timeLimitSeconds: given.timeLimitSeconds ?? (given.shape === 'lambda' ? 900 : 3600),
  }))

/** How a function is called: the `configuration` of a runtime of driver `serverless`. */
export type ServerlessConfiguration = z.output<typeof Configuration>

export interface ServerlessProblem {
  /** `configuration.endpoint`, `timeoutSeconds` … */
  path: string
  message: string
  /** A `warning` does not keep the activity from running. */
  severity: 'error' | 'warning'
}

const readConfiguration = (
  configuration: unknown,
): { value?: ServerlessConfiguration; problems: ServerlessProblem[] } => {
  const parsed = Configuration.safeParse(configuration)
  if (parsed.success) return { value: parsed.data, problems: [] }
  return {
    problems: parsed.error.issues.slice(0, 20).map(({ path, message }) => ({
      path: ['configuration', ...path].join('.'),
      message,
      severity: 'error',
    })),
  }
}

/** @throws DriverError `refused` with all its faults. */
export const serverlessConfiguration = (configuration: unknown): ServerlessConfiguration => {
  const { value, problems } = readConfiguration(configuration)
  if (value === undefined)
    throw new DriverError('refused', problems.map(({ path, message }) => `${path} ${message}`).join('; '))
  return value
}

/** The demands of an activity that can exceed a function's limits. */
export interface ServerlessDemand {
  timeoutSeconds: number
  memoryBytes: number
  gpus?: number
  image?: string
}

/**
 * All reasons, known before a run, why an activity cannot run as a function of this configuration:
 * also the faults of the configuration itself. An image only causes a warning: a function's image
 * is its own.
 */
export const serverlessProblems = (demand: ServerlessDemand, configuration: unknown): ServerlessProblem[] => {
  const { value, problems } = readConfiguration(configuration)
  if (value === undefined) return problems
  const found: ServerlessProblem[] = []
  const { timeLimitSeconds, memoryLimitBytes } = value
  if (demand.timeoutSeconds > timeLimitSeconds)
    found.push({
      path: 'timeoutSeconds',
      message:
        `is ${demand.timeoutSeconds} s, and the platform ends a call after ${timeLimitSeconds} s ` +
        '(timeLimitSeconds); lower it or plan the activity elsewhere',
      severity: 'error',
    })
  if (memoryLimitBytes !== undefined && demand.memoryBytes > memoryLimitBytes)
    found.push({
      path: 'memoryBytes',
      message:
        `is ${demand.memoryBytes}, and the function has ${memoryLimitBytes} bytes (memoryLimitBytes); ` +
        'give the function more or plan the activity elsewhere',
      severity: 'error',
    })
  if ((demand.gpus ?? 0) > 0)
    found.push({
      path: 'gpus',
      message: `is ${String(demand.gpus)}, and a function has no GPU; plan the activity elsewhere`,
      severity: 'error',
    })
  if (demand.image !== undefined)
    found.push({
      path: 'image',
      message: `${JSON.stringify(demand.image)} is not used: a function runs in the image that it was deployed with`,
      severity: 'warning',
    })
  return found
}
