import { parseArgs, type ParseArgsConfig, type ParseArgsOptionsConfig } from 'node:util'
import { version } from '../version.ts'

/** An argument that a program does not know or cannot use; the message names it. */
export class ArgumentError extends Error {}

interface Rules<Options extends ParseArgsOptionsConfig> {
  /** The text of `--help`: one form of the command a line. */
  usage: string
  options?: Options
  /** The least and the largest number of positional arguments; none when absent. */
  positionals?: readonly [least: number, most: number]
  /** The arguments of the process when absent. */
  args?: string[]
}

interface Read<Options extends ParseArgsOptionsConfig> {
  values: ReturnType<typeof parseArgs<ParseArgsConfig & { options: Options; strict: true }>>['values']
  positionals: string[]
}

/**
 * Reads the arguments of a program as `node:util` does, and returns the result of `interpret`.
 * `--help` prints the usage, `--version` the version of the service; both end the process with 0.
 * An argument that is unknown, lacks its value, is missing or is one too many, or that `interpret`
 * refuses by an ArgumentError, ends the process with 2; standard error then shows its name and the
 * usage.
 */
export const readArguments = <Options extends ParseArgsOptionsConfig, T>(
  { usage, options, positionals = [0, 0], args = process.argv.slice(2) }: Rules<Options>,
  interpret: (read: Read<Options>) => T,
): T => {
  const end = (code: 0 | 2, text: string): never => {
    const stream = code === 0 ? process.stdout : process.stderr
    stream.write(`${text.trimEnd()}\n`)
    process.exit(code)
  }
  try {
    const read = parse(args, { ...options, help: { type: 'boolean' }, version: { type: 'boolean' } })
    if (read.values.help === true) return end(0, usage)
    if (read.values.version === true) return end(0, version)
    checkCount(read.positionals, positionals)
    return interpret(read as unknown as Read<Options>)
  } catch (error) {
    if (!(error instanceof ArgumentError)) throw error
    return end(2, `${error.message}\n\n${usage}`)
  }
}

const parse = (args: string[], options: ParseArgsOptionsConfig) => {
  try {
    return parseArgs({ args, options, allowPositionals: true })
  } catch (error) {
    if (!(error instanceof TypeError)) throw error
    // Node adds advice about arguments with a leading hyphen, which no program here takes.
    throw new ArgumentError(
      error.message.replace(/^Unknown option '([^']*)'.*/s, '$1 is not an option of this program'),
      { cause: error },
    )
  }
}

const checkCount = (given: readonly string[], [least, most]: readonly [number, number]): void => {
  const surplus = given[most]
  if (surplus !== undefined) throw new ArgumentError(`${surplus} is not an argument of this program`)
  if (given.length < least) throw new ArgumentError('an argument is missing')
}
