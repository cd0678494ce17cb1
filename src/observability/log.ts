import { pino } from 'pino'
import type { Config } from '../config.ts'
import { sentences } from './terminal.ts'

export type Log = pino.Logger

const secrets = [
  'apiToken',
  'password',
  'databaseUrl',
  'databasePassword',
  'temporalCodecKey',
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
export const withoutSecrets = (text: string): string =>
  text.replace(urlPassword, '$1:****@').replace(bearer, '$1 ****')

/**
 * Type, text, code and stack of an error. Other members of libraries' errors (clients, queries,
 * keys) stay out of the log.
 */
const describedError = (value: unknown): unknown => {
  if (!(value instanceof Error)) return value
  const { type, message, stack, aggregateErrors } = pino.stdSerializers.err(value)
  const { code } = value as NodeJS.ErrnoException
  // An attempt at several addresses has one error for each address and no text of its own.
  const text =
    message === '' ? ((aggregateErrors ?? []) as Error[]).map((each) => each.message).join('; ') : message
  return {
    type,
    message: withoutSecrets(text),
    ...(code === undefined ? {} : { code }),
    stack: withoutSecrets(stack),
  }
}

/**
 * Standard output can close before this process ends (a closed terminal, a pipe without a reader):
 * later lines are dropped.
 */
const standardOutput = (): pino.DestinationStream => {
  const out = pino.destination({ dest: 1, sync: true })
  out.on('error', () => {
    out.write = () => true
  })
  return out
}

/**
 * JSON lines on standard output (or `destination`), sentences where standard output is a terminal.
 * Context travels in child loggers: `log.child({ requestId })`, `{ runId }`, `{ workflowId }`.
 * Members with the names of secrets are masked down to the second level, texts everywhere.
 */
export const openLog = (level: Config['logLevel'], destination?: pino.DestinationStream): Log => {
  const options: pino.LoggerOptions = {
    level,
    base: { pid: process.pid },
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
    serializers: { err: describedError, error: describedError },
    redact: { paths: secrets.flatMap((name) => [name, `*.${name}`, `*.*.${name}`]), censor: '****' },
    hooks: {
      logMethod(args, method) {
        method.apply(
          this,
          args.map((arg: unknown) => (typeof arg === 'string' ? withoutSecrets(arg) : arg)) as Parameters<
            typeof method
          >,
        )
      },
    },
  }
  return pino(options, destination ?? (process.stdout.isTTY ? sentences(standardOutput()) : standardOutput()))
}
