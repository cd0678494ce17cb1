import type { Circus } from '@jest/types'
import { TestEnvironment } from 'jest-environment-node'
import type { JestEnvironmentConfig, EnvironmentContext } from '@jest/environment'
import { leftOutMark, record } from './events.ts'

const nativeErrors = [
  'Error',
  'AggregateError',
  'EvalError',
  'RangeError',
  'ReferenceError',
  'SyntaxError',
  'TypeError',
  'URIError',
] as const

type Constructor = abstract new (...args: never[]) => unknown

/** Milliseconds for late errors of a file after its last test: more where it runs again, alone. */
const lateErrorsMs = process.env['ORRERY_TEST_AGAIN'] === undefined ? 50 : 1_500

/** The file whose tests ran last in this process, and the one before it. */
let currentFile = 'no test file'
let earlierFile: string | undefined

const recordStray = (error: unknown): void => {
  record({
    kind: 'stray',
    file: currentFile,
    ...(earlierFile === undefined ? {} : { earlier: earlierFile }),
    text: error instanceof Error ? (error.stack ?? error.message) : String(error),
  })
}

/**
 * Jest catches errors outside of tests only while a file's tests run: it removes these listeners
 * before the first test and restores them after the last, but not where the file could not be
 * loaded. Its own listener ends the worker, and the file runs again.
 */
const listen = (): void => {
  for (const event of ['uncaughtException', 'unhandledRejection'] as const) {
    process.removeAllListeners(event)
    process.on(event, recordStray)
  }
}

/**
 * Jest's Node environment, changed so that code behaves as in the service: an error that Node
 * itself makes is an `instanceof Error` although it belongs to another context (jestjs/jest#2549).
 * It records each test that is left out and each error outside of tests for `test/support/run-files.ts`.
 */
export default class Environment extends TestEnvironment {
  readonly #file: string
  #hasBegun = false
  /** Errors outside of the code that Jest awaits, by their promise. */
  readonly #unhandled = new Map<object, unknown>()

  constructor(config: JestEnvironmentConfig, context: EnvironmentContext) {
    super(config, context)
    this.#file = context.testPath
    earlierFile = currentFile === 'no test file' ? undefined : currentFile
    currentFile = context.testPath
    const scope = this.global as unknown as Record<string, Constructor>
    for (const name of nativeErrors) recognizeErrorsOfNode(scope[name] as Constructor, globalThis[name])
    const exit = (code?: number): never => {
      recordStray(new Error(`process.exit(${String(code)}) was called in a test`))
      return process.exit(1)
    }
    Object.assign((this.global as unknown as { process: NodeJS.Process }).process, { exit })
  }

  handleTestEvent(event: Circus.Event): void {
    // Not earlier: Jest replaces a large worker when the next file has just been given to it.
    if (event.name === 'test_start' && !this.#hasBegun) {
      this.#hasBegun = true
      record({ kind: 'process', file: this.#file, pid: process.pid })
    }
    // Jest assigns an error to the test that caused it, and loses it where that test is over.
    if (event.name === 'error') this.#unhandled.set(event.promise ?? {}, event.error)
    if (event.name === 'error_handled') this.#unhandled.delete(event.promise)
    if (event.name !== 'add_test' && event.name !== 'start_describe_definition') return
    const need = (this.global as unknown as Record<symbol, unknown>)[leftOutMark]
    const name = event.name === 'add_test' ? event.testName : event.blockName
    if (typeof need === 'string') {
      if (event.name === 'add_test') record({ kind: 'left-out', file: this.#file, name, need })
    } else if (event.mode !== undefined && event.mode !== null) {
      record({ kind: 'switched-off', file: this.#file, name, mode: event.mode })
    }
  }

  override async setup(): Promise<void> {
    await super.setup()
    listen()
  }

  override async teardown(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, lateErrorsMs))
    for (const error of this.#unhandled.values()) recordStray(error)
    await super.teardown()
  }
}

/**
 * Makes `value instanceof inner` true for instances of `outer`, the same constructor in Node's own
 * context.
 */
const recognizeErrorsOfNode = (inner: Constructor, outer: Constructor): void => {
  const isInstance = Function.prototype[Symbol.hasInstance]
  Object.defineProperty(inner, Symbol.hasInstance, {
    configurable: true,
    // Classes that extend `inner` inherit this method; they recognize their own instances only.
    value(this: Constructor, value: unknown): boolean {
      return isInstance.call(this, value) || (this === inner && isInstance.call(outer, value))
    },
  })
}
