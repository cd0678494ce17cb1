import { pino } from 'pino'
import type { Config } from '../config.ts'

export type Log = pino.Logger

const secrets = [
  'apiToken',
  'password',
  'databaseUrl',
  'databasePassword',
  'authorization',
  'token',
  'secret',
  'privateKey',
  'kubeconfig',
  'credential',
  'cookie',
]

/** Passwords inside connection URLs, which error texts of libraries may quote. */
const urlPassword = /\b([a-z][a-z0-9+.-]*:\/\/[^\s:/@]*):[^\s@/]+@/gi
const bearer = /\b(Bearer|Basic)\s+[A-Za-z0-9._~+/=-]+/gi

/** Text without the passwords and tokens that it may quote. */
export const withoutSecrets = (text: string): string => text.replace(urlPassword, '$1:****@').replace(bearer, '$1 ****')

/**
 * JSON lines on standard output (or `destination`). Context travels in child loggers: `log.child({ requestId })`, `{ runId }`,
 * `{ workflowId }`. Members with the names of secrets are masked down to the second level, texts everywhere.
 */
export const openLog = (level: Config['logLevel'], destination?: pino.DestinationStream): Log => {
  const error = (value: unknown): unknown => {
    if (!(value instanceof Error)) return value
    const serialized = pino.stdSerializers.err(value)
    return { ...serialized, message: withoutSecrets(serialized.message), stack: withoutSecrets(serialized.stack) }
  }
  const options: pino.LoggerOptions = {
    level,
    base: { pid: process.pid },
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
    serializers: { err: error, error },
    redact: { paths: secrets.flatMap((name) => [name, `*.${name}`, `*.*.${name}`]), censor: '****' },
    hooks: {
      logMethod(args, method) {
        method.apply(this, args.map((arg: unknown) => (typeof arg === 'string' ? withoutSecrets(arg) : arg)) as Parameters<typeof method>)
      },
    },
  }
  return destination === undefined ? pino(options) : pino(options, destination)
}
