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

/** How long errors that a file left behind may take to appear after its last test, in ms. */
const lateErrorsMs = 50

/** The file whose tests ran last in this process. */
let currentFile = 'no test file'

const recordStray = (error: unknown): void => {
  record({ kind: 'stray', file: currentFile, text: error instanceof Error ? (error.stack ?? error.message) : String(error) })
}

// Jest takes such errors while a file's tests run, and only then: it removes these listeners before the first test and restores them
// after the last. Its own listener ends the worker, and the file runs again.
process.removeAllListeners('uncaughtException')
process.on('uncaughtException', recordStray)
process.on('unhandledRejection', recordStray)

/**
 * Jest's Node environment, in which code sees what it sees in the service: an error that Node itself makes is an `instanceof Error`
 * although it belongs to another context (jestjs/jest#2549). It records each test that is left out and each error outside of tests
 * for `test/run.ts`.
 */
export default class Environment extends TestEnvironment {
  readonly #file: string
  #finished = false

  constructor(config: JestEnvironmentConfig, context: EnvironmentContext) {
    super(config, context)
    this.#file = context.testPath
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
    if (event.name === 'run_finish') this.#finished = true
    // Jest still takes errors for a moment after it has made the file's result.
    if (event.name === 'error' && this.#finished) recordStray(event.error)
    if (event.name !== 'add_test' && event.name !== 'start_describe_definition') return
    const need = (this.global as unknown as Record<symbol, unknown>)[leftOutMark]
    const name = event.name === 'add_test' ? event.testName : event.blockName
    if (typeof need === 'string') {
      if (event.name === 'add_test') record({ kind: 'left-out', file: this.#file, name, need })
    } else if (event.mode !== undefined && event.mode !== null) {
      record({ kind: 'switched-off', file: this.#file, name, mode: event.mode })
    }
  }

  override async teardown(): Promise<void> {
    await new Promise((resolve) => setTimeout(resolve, lateErrorsMs))
    await super.teardown()
  }
}

/** Makes `value instanceof inner` true for what is an instance of `outer`, the same constructor of Node's own context. */
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
